"""A shard whose only process has ended: a search waits, fails and names it, or leaves it out."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from sbert_search import Index, Query, RayRunner, SearchEngine
from sbert_search.cluster import holders
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ClusterError
from sbert_search.index.shards.manifest import shard_of
from sbert_search.search.options import SearchMode
from tests.index.shards.test_index import QUERIES, some_rows
from tests.integrations.ray.conftest import Machines

MODEL = HashingEmbedder(24)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    out = tmp_path_factory.mktemp("lost") / "three"
    return Index.build(some_rows(300), out=out, model=MODEL, n_shards=3)


@pytest.fixture(scope="module")
def runner(machines: Machines) -> Iterator[RayRunner]:
    with RayRunner(machines.address, workers=3, partial=True) as opened:
        yield opened


def test_a_search_waits_for_a_process_that_starts_again(runner: RayRunner, index: Index) -> None:
    local, remote = SearchEngine(index, MODEL), SearchEngine(index, MODEL, runner=runner)
    ray.kill(runner._holders()._processes[0]._handle, no_restart=False)
    queries = [Query(str(n), text) for n, text in enumerate(QUERIES)]
    assert remote.run(queries) == local.run(queries)  # which may not leave out a shard


def test_a_process_that_stands_still_is_ended_and_replaced(
    runner: RayRunner,
    index: Index,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    local, remote = SearchEngine(index, MODEL), SearchEngine(index, MODEL, runner=runner)
    held = runner._holders()
    monkeypatch.setattr(held, "_timeout_s", 5.0)
    handle: Any = held._processes[2]._handle
    stopped = int(ray.get(handle.__ray_call__.remote(lambda worker: os.getpid())))
    os.kill(stopped, signal.SIGSTOP)
    assert remote.search("mill river").missing == ("shard-0002",)
    assert "has not answered for 5 s." in capsys.readouterr().err
    queries = [Query(str(n), text) for n, text in enumerate(QUERIES)]
    assert remote.run(queries) == local.run(queries)  # waits for the new process
    end = time.monotonic() + 60
    while is_running(stopped):
        assert time.monotonic() < end
        time.sleep(0.1)


def is_running(process: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_lost_shard_is_left_out_and_named_or_is_an_error(
    runner: RayRunner, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "LOST_S", 0.5)
    local, remote = SearchEngine(index, MODEL), SearchEngine(index, MODEL, runner=runner)
    runner._holders()._processes[1].end()  # for good
    modes: list[SearchMode] = ["dense", "lexical"]
    for mode in modes:
        found = remote.search("mill river", 300, mode=mode, where="year > 1990")
        assert found.missing == ("shard-0001",)
        wanted = local.search("mill river", 300, mode=mode, where="year > 1990")
        kept = [hit for hit in wanted if shard_of(hit.doc_id, 3) != 1]
        assert 0 < len(kept) < len(wanted)
        assert [(h.doc_id, h.score) for h in found] == [(h.doc_id, h.score) for h in kept]
    hybrid = remote.search_many(QUERIES, 5, mode="hybrid")
    assert {hits.missing for hits in hybrid} == {("shard-0001",)}
    with pytest.raises(
        ClusterError, match=r"^shard-0001 of /.*/three is lost: .* with replicas\.$"
    ):
        remote.run([Query("q", "mill river")])
