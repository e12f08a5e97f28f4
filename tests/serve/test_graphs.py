"""A server exports the graph of its model beside the requests; its next start loads no torch."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sbert_search.index.index import Index
from sbert_search.models.heads import Normalize
from sbert_search.serve.access import AccessTokens
from sbert_search.serve.state import ServeSettings, open_served
from tests.cli.conftest import ROWS
from tests.models.tiny import tiny_bi_encoder
from tests.serve.live import Live, live_server

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index by a tiny model, without a graph in the cache of a test."""
    base = tmp_path_factory.mktemp("graphless")
    tiny_bi_encoder(base / "tokens", head=[Normalize()]).save(base / "model")
    Index.build(ROWS, out=base / "my.index", model=str(base / "model"))
    return base / "my.index"


def _eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 600  # an export has the lowest priority
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def _graphs(cache: Path) -> list[str]:
    """Return the names of finished graphs, without an end, and of unfinished ones."""
    folder = cache / "sbert-search/graphs"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def _has_torch(live: Live) -> bool:
    return "libtorch" in Path(f"/proc/{live.process.pid}/maps").read_text()


def _children(live: Live) -> list[str]:
    """Return the ids of the processes that export."""
    pid = live.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [n for n in children if b"spawn_main" in Path(f"/proc/{n}/cmdline").read_bytes()]


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_the_second_start_loads_no_torch(
    index: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    with live_server(index, *options, env=env) as live:
        assert options or _has_torch(live)
        found = live.search("the cat", mode="dense")
        _eventually(lambda: [len(name) for name in _graphs(tmp_path)] == [64])
        if not options:
            _eventually(lambda: not _children(live))
        assert live.stop() == 0
    assert sum("once, so that the next searches do not load" in note for note in live.notes) == 1
    with live_server(index, *options, env=env) as live:
        assert not _has_torch(live)
        assert any("engine onnx" in note for note in live.notes)
        again = live.search("the cat", mode="dense")
        assert live.stop() == 0
    assert [hit["id"] for hit in again] == [hit["id"] for hit in found]
    scores = [[hit["score"] for hit in hits] for hits in (again, found)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_export_ends_with_the_server_and_leaves_nothing(
    index: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with live_server(index, env={"XDG_CACHE_HOME": str(tmp_path)}) as live:
        _eventually(lambda: bool(_graphs(tmp_path)))
        [child] = _children(live)
        assert os.getpriority(os.PRIO_PROCESS, int(child)) == 19
        assert live.stop(number) == (0 if number is signal.SIGTERM else -number)
        _eventually(lambda: not Path(f"/proc/{child}").exists())
    assert _graphs(tmp_path) == []


@pytest.mark.thorough
def test_a_killed_export_harms_neither_the_server_nor_the_cache(
    index: Path, tmp_path: Path
) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    with live_server(index, env=env) as live:
        _eventually(lambda: bool(_graphs(tmp_path)))
        [child] = _children(live)
        os.kill(int(child), signal.SIGKILL)
        _eventually(lambda: not _children(live))
        assert live.search("the cat", mode="dense")
        assert live.stop() == 0
    [left] = _graphs(tmp_path)
    assert "." in left
    with live_server(index, env=env) as live:  # it does not try again on the same day
        assert _has_torch(live)
        assert live.search("the cat", mode="dense")
        _eventually(lambda: not _children(live))
        assert live.stop() == 0
    assert _graphs(tmp_path) == [left]


def test_only_a_model_that_may_be_computed_by_a_graph_is_exported(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = index.with_name("model")
    for quick, folders in ((True, [model]), (False, [])):
        settings = ServeSettings(
            indexes={"one": index, "two": index},
            models=[str(model), "hashing"],
            tokens=AccessTokens({}),
            quick=quick,
        )
        served = open_served(settings)
        try:
            assert list(served.graphless) == folders
        finally:
            for one in served.models:
                one.queue.close()
