"""What a `RayRunner` does with its connection and its processes, without Ray."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import ModuleType

import pytest

from sbert_search.cluster import runner as runners
from sbert_search.cluster.connection import Machine, connect
from sbert_search.cluster.placed import PlacedSnapshot
from sbert_search.cluster.runner import RayRunner
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ClusterError, ConfigError
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from tests.cluster.processes import LocalCluster

MODEL = HashingEmbedder(16)
ROWS = [{"_id": str(n), "text": f"river {n}"} for n in range(20)]


@pytest.fixture
def connections(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Connect runners to a cluster of two machines; return what was opened and closed."""
    said: list[str] = []

    @contextlib.contextmanager
    def connect(address: str | None) -> Iterator[LocalCluster]:
        said.append("opened")
        try:
            yield cluster
        finally:
            said.append("closed")

    machines = [Machine("a", 2, 0), Machine("b", 2, 0)]
    monkeypatch.setattr(cluster, "machines", lambda: machines, raising=False)
    monkeypatch.setattr(runners, "connect", connect)
    return said


def test_a_runner_that_cannot_begin_disconnects(connections: list[str]) -> None:
    with pytest.raises(ConfigError, match="too few CPUs for 5 workers"):
        RayRunner(workers=5).__enter__()
    assert connections == ["opened", "closed"]


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[ray\]'"):
        RayRunner().__enter__()


def test_a_runner_outside_of_its_context_says_how_to_use_it(
    connections: list[str], tmp_path: Path
) -> None:
    index = Index.build(ROWS, out=tmp_path / "two", model=MODEL, n_shards=2)
    runner = RayRunner()
    with pytest.raises(ClusterError, match=r"not connected\. Use it .*`with RayRunner"):
        SearchEngine(index, MODEL, runner=runner)
    with pytest.raises(ClusterError, match="not connected"):
        Index.build(ROWS, model=MODEL, runner=runner)
    with runner:
        engine = SearchEngine(index, MODEL, runner=runner)
        assert len(engine.search("river", 20)) == 20
    with pytest.raises(ClusterError, match="not connected"):
        engine.search("river")


@pytest.mark.parametrize("fails", [False, True])
def test_the_settings_of_ray_are_as_before_after_a_connection(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        assert not worker.__dict__["_worker_logs_enabled"]
        assert (os.environ[statistics], os.environ[gpus]) == ("1", "0")
        if fails:
            raise ConnectionError("no cluster")

    statistics, gpus = "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
    monkeypatch.setenv(statistics, "1")  # by the user
    monkeypatch.delenv(gpus, raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray, private, worker = map(ModuleType, ("ray", "ray._private", "ray._private.worker"))
    private.__dict__["worker"] = worker
    worker.__dict__["_worker_logs_enabled"] = True
    ray.__dict__.update(is_initialized=lambda: False, init=init, shutdown=lambda: None)
    for module in (ray, private, worker):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    refused = pytest.raises(ClusterError, match="no cluster")
    with refused if fails else contextlib.nullcontext(), connect():
        pass
    assert worker.__dict__["_worker_logs_enabled"] is True
    assert os.environ[statistics] == "1"
    assert gpus not in os.environ


def test_processes_that_hold_shards_serve_all_engines_and_end_with_the_runner(
    connections: list[str], cluster: LocalCluster, tmp_path: Path
) -> None:
    one = Index.build(ROWS, out=tmp_path / "one", model=MODEL, n_shards=2)
    two = Index.build(ROWS[:9], out=tmp_path / "two", model=MODEL, n_shards=3)
    with RayRunner(replicas=2) as runner:
        engines = [SearchEngine(index, MODEL, runner=runner) for index in (one, two, one)]
        assert [len(engine.search("river", 20)) for engine in engines] == [20, 9, 20]
        assert len(cluster.processes) == 2
        assert runner.placed(one.state) is runner.placed(one.state)
        runner._end_holders()  # as a build does
        assert not any(process.running for process in cluster.processes)
        assert len(engines[1].search("river", 20)) == 9
        assert len(cluster.processes) == 4
    assert not any(process.running for process in cluster.processes)
    assert connections == ["opened", "closed"]


def test_searches_go_on_while_another_state_is_opened(
    connections: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (Index.build(ROWS, out=tmp_path / name, model=MODEL, n_shards=2) for name in "ab")
    opening, go_on = Event(), Event()

    def slow(self: PlacedSnapshot) -> None:
        opening.set()
        assert go_on.wait(60)

    with RayRunner() as runner, ThreadPoolExecutor(2) as threads:
        engine = SearchEngine(one, MODEL, runner=runner)
        monkeypatch.setattr(PlacedSnapshot, "open", slow)
        opened = threads.submit(SearchEngine, two, MODEL, runner=runner)
        try:
            assert opening.wait(60)
            assert len(threads.submit(engine.search, "river", 20).result(timeout=10)) == 20
            assert not opened.done()
        finally:
            go_on.set()
        assert len(opened.result().search("river", 20)) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"replicas": 3},
            r"replicas is 3, .* gives 2 .* Pass fewer replicas, or connect more machines with",
        ),
        (
            {"replicas": 2, "workers": 1},
            r"replicas is 2, .* gives 1 .* Pass fewer replicas, or pass more workers\.$",
        ),
        ({"replicas": 0}, "replicas is 0, .* must be from 1"),
    ],
)
def test_too_few_processes_for_the_replicas_are_named_with_a_remedy(
    connections: list[str], tmp_path: Path, options: dict[str, int], message: str
) -> None:
    index = Index.build(ROWS, out=tmp_path / "one", model=MODEL, n_shards=2)
    with (
        RayRunner(**options) as runner,  # type: ignore[arg-type]
        pytest.raises(ConfigError, match=message) as raised,
    ):
        SearchEngine(index, MODEL, runner=runner)
    assert ("more workers" in str(raised.value)) == ("workers" in options)  # `serve` has other ones


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_that_cannot_be_is_refused(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match=r"shard_timeout_s is .*; it must be a number above 0"):
        RayRunner(shard_timeout_s=timeout_s)


def test_the_time_limit_is_that_of_the_processes(connections: list[str], tmp_path: Path) -> None:
    index = Index.build(ROWS, out=tmp_path / "one", model=MODEL, n_shards=2)
    with RayRunner(shard_timeout_s=7) as runner:
        SearchEngine(index, MODEL, runner=runner)
        assert runner._holders()._timeout_s == 7


def test_an_index_without_shards_is_refused(connections: list[str], tmp_path: Path) -> None:
    index = Index.build(ROWS, out=tmp_path / "one", model=MODEL)
    with (
        RayRunner() as runner,
        pytest.raises(
            ConfigError, match=r"one has no shards, and runner=RayRunner\(\) .*n_shards=N"
        ),
    ):
        SearchEngine(index, MODEL, runner=runner)
