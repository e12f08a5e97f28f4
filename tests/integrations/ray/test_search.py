"""Searches of shards on a cluster: the answers of a search in one process, also while some end."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbert_search import Index, RayRunner, SearchEngine, SearchOptions
from sbert_search.cluster.connection import Lost, Share, connect
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ClusterError, ConfigError, CorruptIndex, QueryError
from sbert_search.search.options import SearchMode
from tests.index.shards.test_index import QUERIES, Reversing, shown, some_rows
from tests.integrations.ray.conftest import Machines

MODEL = HashingEmbedder(24)
Engines = tuple[SearchEngine, SearchEngine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards, some of whose documents have several passages, and some of which are deleted."""
    out = tmp_path_factory.mktemp("shards") / "four"
    index = Index.build(some_rows(600), out=out, model=MODEL, n_shards=4, chunk_tokens=12)
    index.delete([f"d{n}" for n in range(0, 600, 9)])
    return out


@pytest.fixture(scope="module")
def runner(machines: Machines) -> Iterator[RayRunner]:
    with RayRunner(machines.address, workers=3, replicas=2) as opened:
        yield opened


@pytest.fixture
def engines(folder: Path, runner: RayRunner) -> Engines:
    """Return an engine of this process, and one on the cluster."""
    return SearchEngine(folder, MODEL), SearchEngine(folder, MODEL, runner=runner)


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(),
        SearchOptions(where="year >= 2010"),
        SearchOptions(group=False),
        SearchOptions(group_by="year", where="year < 2010"),
        SearchOptions(diversity=0.4),
        SearchOptions(fuzzy=1),
        SearchOptions(offset=5),
    ],
    ids=["plain", "filter", "passages", "groups", "diversity", "fuzzy", "page"],
)
def test_answers_are_those_of_one_process_to_the_bit(
    engines: Engines, mode: SearchMode, options: SearchOptions
) -> None:
    n_found = 0
    for query in [*QUERIES, "nothing of this"]:
        chosen = replace(options, k=20, mode=mode)
        local, remote = (e.search(query, options=chosen, highlight=True) for e in engines)
        assert shown(local) == shown(remote)
        assert [hit.row for hit in local] == [hit.row for hit in remote]
        assert (remote.missing, remote.commit) == ((), local.commit)
        n_found += len(local)
    assert n_found > 40


def test_all_other_questions_have_the_same_answers(engines: Engines) -> None:
    local, remote = engines
    assert shown(local.similar(["d4", "d10"])) == shown(remote.similar(["d4", "d10"]))
    where = "year > 2000"
    assert local.facets("mill", "year", where=where) == remote.facets("mill", "year", where=where)
    assert local.suggest("harvst bred") == remote.suggest("harvst bred")
    many = [engine.search_many(QUERIES, 15, where=where) for engine in engines]
    assert list(map(shown, many[0])) == list(map(shown, many[1]))
    reranked = [
        SearchEngine(e.index, MODEL, Reversing(), runner=e.runner).search("mill", 20)
        for e in engines
    ]
    assert shown(reranked[0]) == shown(reranked[1])
    for where in ("yaer > 2000", "year >"):
        said = []
        for engine in engines:
            with pytest.raises(QueryError) as raised:
                engine.search("mill", where=where)
            said.append(str(raised.value))
        assert said[0] == said[1]


def test_a_new_commit_is_searched_after_a_refresh(
    machines: Machines, runner: RayRunner, tmp_path: Path
) -> None:
    rows = some_rows(60)
    Index.build(rows[:50], out=tmp_path / "new", model=MODEL, n_shards=3)
    engine = SearchEngine(tmp_path / "new", MODEL, runner=runner)
    assert len(engine.search("mill", 60, mode="dense")) == 50
    other = Index.open(tmp_path / "new")
    other.add(rows[50:], model=MODEL)
    other.delete(["d3"])
    before = engine.search("mill", 60, mode="dense")
    assert (len(before), before.commit) == (50, engine.index.state.manifest.generation)
    assert engine.refresh()
    after = engine.search("mill", 60, mode="hybrid")
    assert shown(after) == shown(SearchEngine(other, MODEL).search("mill", 60, mode="hybrid"))
    assert after.commit == before.commit + 2
    engine.index.delete(["d4"])  # by the object that the engine searches
    assert len(engine.search("mill", 60, mode="dense")) == 58


def test_a_lost_machine_changes_no_answer_and_is_replaced(
    machines: Machines, runner: RayRunner, engines: Engines
) -> None:
    local, remote = engines
    wanted = [shown(local.search(query, 20)) for query in QUERIES]
    machines.kill(0)
    for query, hits in zip(QUERIES, wanted, strict=True):
        assert shown(remote.search(query, 20)) == hits
    machines.add()
    processes, running = runner._holders()._processes, set[int]()
    end = time.monotonic() + 60
    while len(running) < len(processes):
        assert time.monotonic() < end
        for n, process in enumerate(processes):
            try:
                process.call("host").result()
                running.add(n)
            except Lost:
                time.sleep(0.1)
    for query, hits in zip(QUERIES, wanted, strict=True):
        assert shown(remote.search(query, 20)) == hits


class Failing:
    """Raises the errors of a process on another machine."""

    def damaged(self) -> None:
        raise CorruptIndex("seg/1.vec.npy", "4 bytes", "3 bytes", "Copy it again.")

    def unknown(self) -> None:
        class StubbornError(Exception):  # an error of another package
            def __init__(self, one: int, two: int) -> None:
                super().__init__(f"{one} is not {two}")

        raise StubbornError(1, 2)


def test_an_error_of_a_process_is_not_taken_for_its_end(
    machines: Machines, runner: RayRunner
) -> None:
    with connect(machines.address) as cluster:
        process = cluster.start(Failing, Share(1, 0, 0))
        try:
            with pytest.raises(CorruptIndex, match=r"seg/1.*Copy it again\.$") as raised:
                process.call("damaged").result()
            assert raised.value.file == "seg/1.vec.npy"
            with pytest.raises(ClusterError, match=r"process on the cluster failed: .*1 is not 2"):
                process.call("unknown").result()
        finally:
            process.end()


class Absent:
    """Cannot be made, as on a machine without this package."""

    def __init__(self) -> None:
        raise ModuleNotFoundError("No module named 'sbert_search'")

    def host(self) -> str:
        return "here"


def test_a_process_that_cannot_start_says_why_and_where(
    machines: Machines, runner: RayRunner
) -> None:
    with connect(machines.address) as cluster:
        process = cluster.start(Absent, Share(1, 0, 0))
        why = r"^A process on [\d.]+ cannot start: ModuleNotFoundError: No module named 'sbert_sear"
        with pytest.raises(Lost, match=why + r"ch'\. Install the same versions of .*machines\.$"):
            process.call("host").result()


class Waiting:
    """Has a method that takes long."""

    def wait(self) -> None:
        time.sleep(600)

    def host(self) -> str:
        return "here"


def test_no_call_waits_for_a_method_with_a_thread_of_its_own(
    machines: Machines, runner: RayRunner
) -> None:
    with connect(machines.address) as cluster:
        process = cluster.start(Waiting, Share(1, 0, 0), own_thread="wait")
        try:
            process.call("wait")
            assert process.call("host").result(60) == "here"
        finally:
            process.end()


def test_what_cannot_be_searched_on_a_cluster_is_named(
    machines: Machines, runner: RayRunner, tmp_path: Path
) -> None:
    Index.build(some_rows(5), out=tmp_path / "one", model=MODEL)
    with pytest.raises(ConfigError, match=r"/one has no shards.*n_shards=N"):
        SearchEngine(tmp_path / "one", MODEL, runner=runner)
    index = Index.build(some_rows(9), out=tmp_path / "moved", model=MODEL, n_shards=2)
    (tmp_path / "moved").rename(tmp_path / "elsewhere")
    host = socket.gethostname()
    with pytest.raises(
        ClusterError, match=rf"^{host} cannot open commit \d+ of /.*/moved: .*Every"
    ):
        SearchEngine(index, MODEL, runner=runner)
    with (
        RayRunner(machines.address, workers=3, replicas=4) as many,
        pytest.raises(ConfigError, match="replicas is 4, and the cluster gives 3 processes"),
    ):
        many.placed(index.state)
