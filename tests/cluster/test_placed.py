"""A placed state answers as one that this process searches, and names the shards that it lacks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from sbert_search.cluster import holders, shard_worker
from sbert_search.cluster.placed import PlacedSnapshot
from sbert_search.cluster.shard_worker import ShardWorker, UnknownCommit
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ClusterError, ConfigError, LostShards, QueryError
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.index import Index
from sbert_search.index.settings import IndexSpec
from sbert_search.index.shards.manifest import shard_of
from sbert_search.index.shards.opening import open_snapshot
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.upkeep import merge_policy
from sbert_search.records import Query
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchMode, SearchOptions
from tests.cluster.processes import VERSIONS, LocalCluster, LocalRunner
from tests.index.shards.test_index import QUERIES, shown, some_rows

MODEL = HashingEmbedder(24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five shards with dead rows; in some, the numbers of a column are whole."""
    out, rows = tmp_path_factory.mktemp("shards") / "five", some_rows(400)
    for n, row in enumerate(rows):
        row["score"] = n + 0.5 if shard_of(str(row["_id"]), 5) == 2 else n
    index = Index.build(rows, out=out, model=MODEL, n_shards=5, chunk_tokens=12)
    index.delete([f"d{n}" for n in range(0, 400, 7)])
    return out


@pytest.fixture
def engines(folder: Path, cluster: LocalCluster) -> tuple[SearchEngine, SearchEngine]:
    index = Index.open(folder)
    return SearchEngine(index, MODEL), SearchEngine(index, MODEL, runner=LocalRunner(cluster))


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(),
        SearchOptions(where="year >= 2010 OR score < 9.3"),
        SearchOptions(group=False),
        SearchOptions(group_by="year", where="year < 2010"),
        SearchOptions(fuzzy=1),
    ],
    ids=["plain", "filter", "passages", "groups", "fuzzy"],
)
def test_answers_are_those_of_a_search_in_one_process(
    engines: tuple[SearchEngine, SearchEngine], mode: SearchMode, options: SearchOptions
) -> None:
    for query in QUERIES:
        chosen = replace(options, k=20, mode=mode)
        local, remote = (e.search(query, options=chosen, highlight=True) for e in engines)
        assert shown(local) == shown(remote)
    assert local.commit == remote.commit
    assert engines[1].search("zzz", mode="lexical") == []


def test_the_processes_search_and_not_the_caller(
    engines: tuple[SearchEngine, SearchEngine], cluster: LocalCluster
) -> None:
    asked = [process.asked for process in cluster.processes]
    for calls in asked:
        calls.clear()
    engines[1].search("mill", mode="hybrid", where="year > 1990")
    # The documents have several passages: more of them are fetched until there are enough.
    assert [calls[:1] for calls in asked] == [["count"]] * 3
    assert {name for calls in asked for name in calls} == {"count", "search", "match"}


def test_the_caller_reads_no_vectors_no_postings_and_no_metadata(
    engines: tuple[SearchEngine, SearchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("search", "match", "own_filter_mask"):
        method = getattr(Snapshot, name)

        def only_elsewhere(
            self: Snapshot, *arguments: object, method: Any = method, **keywords: object
        ) -> object:
            assert not isinstance(self, PlacedSnapshot)
            return method(self, *arguments, **keywords)

        monkeypatch.setattr(Snapshot, name, only_elsewhere)
    assert engines[1].search("mill", mode="hybrid", where="year > 1990")


def test_all_questions_of_a_query_go_to_the_same_processes(
    folder: Path, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SearchEngine(folder, MODEL, runner=LocalRunner(cluster, replicas=3))
    find, computed = Snapshot._find_matching, list[str]()

    def counted(self: Snapshot, where: str) -> RowMask:
        computed.append(where)
        return find(self, where)

    monkeypatch.setattr(Snapshot, "_find_matching", counted)
    for process in cluster.processes:
        process.asked.clear()
    engine.search("mill", mode="hybrid", where="year > 1990")
    assert {name for p in cluster.processes for name in p.asked} == {"count", "search", "match"}
    assert computed == ["year > 1990"] * 3  # once in each process
    computed.clear()
    engine.run([Query("q", "mill")], mode="hybrid", where="year > 1991")
    assert computed == ["year > 1991"] * 3


def test_facets_are_counted_whatever_is_lost(
    engines: tuple[SearchEngine, SearchEngine], cluster: LocalCluster
) -> None:
    local, remote = (e.facets("mill", "year", where="score > 9") for e in engines)
    assert local == remote
    for process in cluster.processes:
        process.running = False
        process.asked.clear()
    assert engines[1].facets("mill", "year", where="score > 9") == local
    assert [process.asked for process in cluster.processes] == [[]] * 3


def test_a_process_that_forgets_the_commit_at_once_is_lost(
    engines: tuple[SearchEngine, SearchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(self: ShardWorker, key: str, *arguments: object) -> None:
        raise UnknownCommit(key)

    monkeypatch.setattr(holders, "LOST_S", 0.0)
    monkeypatch.setattr(ShardWorker, "search", search)
    with pytest.raises(LostShards, match=r"are lost: .* A process has ended twice"):
        engines[1].search("mill", mode="dense")


def with_faiss(out: Path) -> Index:
    """Build an index of two shards, each of which has a FAISS file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_policy, "MIN_ANN_ROWS", 50)
        settings = BuildSettings(spec=IndexSpec(factory="HNSW16"))
        rows = some_rows(400)
        return Index.build(rows, out=out, model=MODEL, n_shards=2, settings=settings)


def test_a_machine_without_faiss_is_named(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = with_faiss(tmp_path / "i")
    assert SearchEngine(index, MODEL, runner=LocalRunner(cluster)).search("mill")

    def require_faiss() -> None:
        raise ConfigError("FAISS is not installed; run `pip install`.")

    monkeypatch.setattr(shard_worker, "require_faiss", require_faiss)
    message = "^here cannot search the FAISS files of the index: FAISS is not installed; run"
    with pytest.raises(ClusterError, match=message):
        SearchEngine(index, MODEL, runner=LocalRunner(cluster))


def test_a_damaged_faiss_file_on_a_machine_is_told(cluster: LocalCluster, tmp_path: Path) -> None:
    index = with_faiss(tmp_path / "i")
    assert index.state.is_sharded
    shard = index.state.parts[1]
    record = shard.manifest.segments[0].vectors["v1"].ann
    assert record is not None
    damaged = shard.path / record.name
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    told = rf"^here: Searching without {record.name}: .* `sbert-search index repair` makes it again"
    with pytest.warns(UserWarning, match=told) as warned:
        engine = SearchEngine(index, MODEL, runner=LocalRunner(cluster))
    assert len(warned) == 1
    hits = engine.search("mill")  # without another warning
    assert len(hits) == 10
    for process in cluster.processes:
        process.made = ShardWorker()  # as if it was started again
    with pytest.warns(UserWarning, match=told) as warned:
        assert shown(engine.search("mill")) == shown(hits)
    assert len(warned) == 1


def test_a_search_does_not_wait_while_files_are_opened(
    folder: Path, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = LocalRunner(cluster)
    engine = SearchEngine(folder, MODEL, runner=runner)
    wanted = shown(engine.search("mill"))
    other = Index.build(some_rows(9), out=tmp_path / "i", model=MODEL, n_shards=3)
    opening, go_on = Event(), Event()

    def slow(*arguments: Any) -> Snapshot:
        opening.set()
        assert go_on.wait(60)
        return open_snapshot(*arguments)

    monkeypatch.setattr(shard_worker, "open_snapshot", slow)
    with ThreadPoolExecutor(2) as threads:
        opened = threads.submit(runner.placed, other.state)
        try:
            assert opening.wait(60)
            found = threads.submit(engine.search, "mill").result(timeout=10)
            assert shown(found) == wanted
            assert not opened.done()
        finally:
            go_on.set()


def test_a_state_whose_files_a_commit_removed_is_replaced_by_the_newest_one(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    index = Index.build(some_rows(40), out=tmp_path / "i", model=MODEL, n_shards=2)

    class Removing(LocalRunner):
        fails, ids = 0, iter(["d0", "d1", "d2"])

        def placed(self, state: Snapshot) -> PlacedSnapshot:
            if self.fails:
                self.fails -= 1
                index.delete([next(self.ids)])
                raise ClusterError("A file is gone.")
            return super().placed(state)

    runner = Removing(cluster)
    engine = SearchEngine(index, MODEL, runner=runner)
    runner.fails = 1
    assert len(engine.search("mill", 40, mode="dense")) == 39
    runner.fails = 2  # not again and again
    with pytest.raises(ClusterError, match="A file is gone"):
        engine.search("mill")


def test_a_lost_shard_is_an_error_or_is_left_out_and_named(
    folder: Path, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "LOST_S", 0.0)
    local = SearchEngine(folder, MODEL)
    strict = SearchEngine(folder, MODEL, runner=LocalRunner(cluster))
    partial = SearchEngine(folder, MODEL, runner=LocalRunner(cluster, partial=True))
    for process in (cluster.processes[1], cluster.processes[4]):  # the second one of each runner
        process.running = False
    with pytest.raises(ClusterError, match=r"^shard-0001, shard-0004 of /.*/five are lost: .*It h"):
        strict.search("mill")
    with pytest.raises(LostShards, match=r"with replicas, or .* with partial=True\.$"):
        strict.search("mill")
    with pytest.raises(LostShards, match=r"^shard-0001, .* several processes with replicas\.$"):
        partial.run([Query("q", "mill")])  # a run has no place for the names
    modes: list[SearchMode] = ["dense", "lexical"]
    for mode in modes:
        found = partial.search("mill river", 400, mode=mode, where="year > 1995")
        every = local.search("mill river", 400, mode=mode, where="year > 1995")
        kept = [hit for hit in every if shard_of(hit.doc_id, 5) not in (1, 4)]
        assert [(h.doc_id, h.score) for h in found] == [(h.doc_id, h.score) for h in kept]
        assert found.missing == found[:3].missing == ("shard-0001", "shard-0004")
    assert partial.similar("d1").missing == ("shard-0001", "shard-0004")
    cluster.processes[4].running = True
    assert partial.search("mill river").missing == ()


def test_the_state_of_a_commit_is_opened_after_the_next_one(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    rows = some_rows(40)
    Index.build(rows[:30], out=tmp_path / "i", model=MODEL, n_shards=2)
    engine = SearchEngine(tmp_path / "i", MODEL, runner=LocalRunner(cluster))
    before = shown(engine.search("mill", 40))
    Index.open(tmp_path / "i").add(rows[30:], model=MODEL)
    for process in cluster.processes:
        process.made = shard_worker.ShardWorker()  # as if it was started again
    assert shown(engine.search("mill", 40)) == before
    assert engine.refresh()
    now = engine.search("mill", 40)
    assert shown(now) == shown(SearchEngine(tmp_path / "i", MODEL).search("mill", 40))
    assert len(now) > len(before)
    worker = cluster.processes[0].made
    assert isinstance(worker, shard_worker.ShardWorker)
    assert [len(kept) for kept in worker._snapshots.values()] == [2]
    for n in range(4):
        engine.index.delete([f"d{n}"])
        engine.search("mill")
    assert max(len(kept) for kept in worker._snapshots.values()) <= shard_worker.STATES_KEPT
    assert len({key for key, _ in worker._parts}) == shard_worker.STATES_KEPT


def test_shards_of_indexes_that_were_searched_long_ago_are_closed(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_worker, "COMMITS_KEPT", 2)
    runner, engines = LocalRunner(cluster), list[SearchEngine]()
    for name in "abc":
        index = Index.build(some_rows(9), out=tmp_path / name, model=MODEL, n_shards=2)
        engines.append(SearchEngine(index, MODEL, runner=runner))
        engines[-1].search("mill")
    worker = cluster.processes[0].made
    assert isinstance(worker, ShardWorker)
    assert {Path(path).name for path, _ in worker._snapshots} == {"b", "c"}
    assert shown(engines[0].search("mill")) == shown(engines[2].search("mill"))  # opened again
    assert {Path(path).name for path, _ in worker._snapshots} == {"c", "a"}


def test_a_machine_without_the_index_or_with_other_versions_is_named(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.build(some_rows(9), out=tmp_path / "i", model=MODEL, n_shards=2)
    runner = LocalRunner(cluster)
    (tmp_path / "i").rename(tmp_path / "moved")
    with pytest.raises(ClusterError, match=rf"^here cannot open commit \d+ of {tmp_path}/i: .*Ev"):
        SearchEngine(index, MODEL, runner=runner)
    (tmp_path / "moved").rename(tmp_path / "i")
    monkeypatch.setattr(shard_worker, "host_and_python", lambda: ("there", "others"))
    with pytest.raises(ClusterError, match=f"^there has others, and .* has {VERSIONS[1]}"):
        SearchEngine(index, MODEL, runner=runner)


def test_wrong_arguments_are_refused_as_in_one_process(
    engines: tuple[SearchEngine, SearchEngine],
) -> None:
    calls: list[Callable[[SearchEngine], object]] = [
        lambda engine: engine.search("mill", where="yaer > 1"),
        lambda engine: engine.search("mill", where="year >"),
        lambda engine: engine.search(np.zeros(7, np.float32)),
        lambda engine: engine.search("mill", 0),
    ]
    for call in calls:
        said = []
        for engine in engines:
            with pytest.raises(QueryError) as raised:
                call(engine)
            said.append(str(raised.value))
        assert said[0] == said[1]
