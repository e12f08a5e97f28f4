"""A lone query takes the short way where there is one, and finds what the long way finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.index.dense import segment_search as single_query
from sbert_search.index.dense.exact import offer_nearest
from sbert_search.index.dense.faiss_file import JoinedLists
from sbert_search.index.dense.segment_search import SingleQuerySearch
from sbert_search.index.settings import IndexSpec
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, Metric, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import merge_policy
from tests.index.batches import make_batch, some_documents, some_vectors

N, K = 3_000, 10
QUERIES = some_vectors(20, seed=11)


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the short way had an answer, each time that it was taken."""
    monkeypatch.setattr(merge_policy, "MIN_ANN_ROWS", 500)
    nearest, times = SingleQuerySearch.nearest, []

    def counted(self: SingleQuerySearch, query: NDArray[np.float32], k: int) -> object:
        found = nearest(self, query, k)
        times.append(found is not None)
        return found

    monkeypatch.setattr(SingleQuerySearch, "nearest", counted)
    return times


def made(path: Path, spec: IndexSpec, metric: Metric = "cosine") -> IndexStore:
    settings = VectorSettings(dim=8, spec=spec, metric=metric)
    store = IndexStore.create(path / "i", Manifest.new(settings))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(N), some_vectors(N, seed=1)))
        writer.finish_build()
    return store


def check_each_query_alone(snapshot: Snapshot, taken: list[bool]) -> None:
    """Compare each query's short way with the long way of all queries together."""
    scores, rows = snapshot.search(QUERIES, K)
    assert not taken
    for query, *together in zip(QUERIES, scores, rows, strict=True):
        for alone, expected in zip(snapshot.search(query[None], K), together, strict=True):
            np.testing.assert_array_equal(alone, expected[None], strict=True)
    assert taken == [True] * len(QUERIES)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "factory",
    ["HNSW16,SQbf16", "IVF16,SQ8", "IVF16,PQ8x4fs", "RR8,SQ8", "PQ8x4", "RaBitQfs"],
)
@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_the_short_way_finds_the_same_bits(
    tmp_path: Path, taken: list[bool], factory: str, metric: Metric
) -> None:
    snapshot = made(tmp_path, IndexSpec(factory=factory, nprobe=8), metric).snapshot
    check_each_query_alone(snapshot, taken)


@pytest.mark.parametrize("factory", ["HNSW16,SQbf16", "IVF8,SQ8"])
def test_the_short_way_over_shards_finds_the_same_bits(
    tmp_path: Path, taken: list[bool], factory: str
) -> None:
    settings = VectorSettings(dim=8, spec=IndexSpec(factory=factory, nprobe=4))
    IndexStore.create(tmp_path / "i", Manifest.new(settings, {"year": "int64"}), n_shards=3)
    store = IndexStore.open(tmp_path / "i")
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(N), some_vectors(N, seed=1)))
        writer.finish_build()
    snapshot = IndexStore.open(tmp_path / "i").snapshot
    assert len(snapshot.segments) == 3
    check_each_query_alone(snapshot, taken)
    with store.writer() as writer:  # a new segment has no FAISS file: it is scanned
        writer.commit(make_batch(some_documents(3, "new"), some_vectors(3, seed=2)))
    taken.clear()
    check_each_query_alone(IndexStore.open(tmp_path / "i").snapshot, taken)


TIERS = ["IVF16,Flat", "IVF16,SQ8", "IVF16,PQ8x4fs", "IVF16,RaBitQfs", "RR8,IVF16,SQ8", "HNSW16"]


def tiers(path: Path, spec: IndexSpec) -> Snapshot:
    """Three segments with FAISS files, some rows of which are dead, and one without."""
    store = made(path, spec)
    with store.writer() as writer:
        for n, seed in ((700, 2), (100, 3), (9, 4)):
            writer.commit(make_batch(some_documents(n, f"{n}-"), some_vectors(n, seed=seed)))
            writer.settle()
        writer.delete([*(f"d{n}" for n in range(0, N, 9)), *(f"700-{n}" for n in range(70)), "9-2"])
    snapshot = IndexStore.open(store.path).snapshot
    assert [ann is not None for ann in snapshot.anns] == [True, True, True, False]
    return snapshot


@pytest.mark.parametrize("factory", TIERS)
def test_the_short_way_over_tiers_finds_the_same_bits(
    tmp_path: Path, taken: list[bool], factory: str
) -> None:
    check_each_query_alone(tiers(tmp_path, IndexSpec(factory=factory, nprobe=4)), taken)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of queries of each call of FAISS that searches several files."""
    search, calls = JoinedLists.search, []

    def counted(self: JoinedLists, queries: NDArray[np.float32], *rest: Any, **more: Any) -> object:
        calls.append(len(queries))
        return search(self, queries, *rest, **more)

    monkeypatch.setattr(JoinedLists, "search", counted)
    return calls


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("factory", ["IVF16,Flat", "IVF16,SQfp16", "IVF16,SQ8", "IVF16,PQ8x4fs"])
def test_files_with_the_same_lists_are_searched_like_one(
    tmp_path: Path, joined: list[int], factory: str, metric: Metric
) -> None:
    store = made(tmp_path, IndexSpec(factory=factory, nprobe=3, refine=1), metric)
    with store.writer() as writer:
        for n, seed in ((700, 2), (100, 3)):
            writer.commit(make_batch(some_documents(n, f"{n}-"), some_vectors(n, seed=seed)))
            writer.settle()
    apart = IndexStore.open(store.path).snapshot
    assert len(apart.segments) == 3
    found = [apart.search(QUERIES, K), apart.search(QUERIES[:1], K)]
    one_call = factory == "IVF16,Flat" or (metric == "cosine" and "SQ" in factory)
    assert joined == ([len(QUERIES), 1] if one_call else [])
    with store.writer() as writer:
        writer.compact()
    one = IndexStore.open(store.path).snapshot
    assert len(one.segments) == 1
    if one_call:  # otherwise each file gives K candidates, so more of them
        for queries, there in zip((QUERIES, QUERIES[:1]), found, strict=True):
            np.testing.assert_array_equal(one.search(queries, K), there)


@pytest.mark.parametrize("gone", ["nearest", "many"])
def test_dead_rows_of_joined_files_hide_no_live_ones(
    tmp_path: Path, joined: list[int], gone: str
) -> None:
    snapshot = tiers(tmp_path, IndexSpec(factory="IVF16,Flat", nprobe=16))
    nearest = snapshot.search(QUERIES[:1], 200)[1][0]
    dead = snapshot.doc_ids(nearest) if gone == "nearest" else [f"700-{n}" for n in range(200)]
    store = IndexStore.open(snapshot.path)
    with store.writer() as writer:
        writer.delete(dead)
    joined.clear()
    for queries in (QUERIES[:1], QUERIES):
        found, expected = (
            store.snapshot.search(queries, K, exact=exact) for exact in (False, True)
        )
        np.testing.assert_array_equal(found, expected)
    assert joined  # of two files at least


def test_segments_fill_up_the_result_together(
    tmp_path: Path, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small segment has few rows in the lists that are visited, and need not be scanned."""
    snapshot = tiers(tmp_path, IndexSpec(factory="IVF16,Flat", nprobe=1))
    check_each_query_alone(snapshot, taken)
    for queries in (QUERIES[:1], QUERIES):  # the lists have fewer rows than are asked for
        found, expected = (snapshot.search(queries, 2_000, exact=exact) for exact in (False, True))
        np.testing.assert_array_equal(found, expected)


def test_no_second_search_looks_for_more_rows_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tiers(tmp_path, IndexSpec(factory="IVF16,Flat", nprobe=16))
    filled: list[bool] = []

    def counted(*arguments: Any, fill: bool = True) -> None:
        filled.append(fill)
        offer_nearest(*arguments, fill=fill)

    monkeypatch.setattr("sbert_search.index.snapshot.offer_nearest", counted)
    rows = snapshot.search(QUERIES, N * 2)[1]
    assert (rows >= 0).sum(axis=1).tolist() == [snapshot.n_rows] * len(QUERIES)
    assert filled
    assert not any(filled)


def test_a_query_that_faiss_cannot_fill_goes_the_long_way(
    tmp_path: Path, taken: list[bool]
) -> None:
    snapshot = made(tmp_path, IndexSpec(factory="IVF16,Flat", nprobe=1)).snapshot
    for k in (1_500, N, N + 1):
        scores, rows = snapshot.search(QUERIES[:1], k)
        expected = snapshot.search(QUERIES[:1], k, exact=True)
        np.testing.assert_array_equal(rows, expected[1])
        np.testing.assert_array_equal(scores, expected[0])
    assert taken == [False] * 3


def test_faiss_searches_no_segment_if_one_should_be_scanned() -> None:
    class Unused:
        def search(self, *arguments: object, **keywords: object) -> None:
            pytest.fail("FAISS searches for a result that is not used")

    plans: list[Any] = [{K: (K, None)}, {K: (0, None)}]
    segment: Any = None
    index: Any = Unused()
    parts = [single_query._Searched(segment, index, plans=own) for own in plans]
    settings = VectorSettings(dim=8, spec=IndexSpec(factory="HNSW16"))
    assert SingleQuerySearch(parts, settings).nearest(QUERIES[:1], K) is None


def test_exact_searches_and_many_dead_rows_go_the_long_way(
    tmp_path: Path, taken: list[bool]
) -> None:
    store = made(tmp_path, IndexSpec(factory="HNSW16"))
    first = store.snapshot.search(QUERIES[:1], 1)[1][0, 0]
    assert taken == [True]
    store.snapshot.search(QUERIES[:1], 1, exact=True)
    with store.writer() as writer:
        writer.delete([store.snapshot.doc_ids(np.array([first]))[0]])
        assert store.snapshot.search(QUERIES[:1], 1)[1][0, 0] != first
        assert taken == [True, True]
        writer.delete([f"d{n}" for n in range(0, N, 3)])
    rows = store.snapshot.search(QUERIES[:1], K)[1]
    assert rows.tolist() == store.snapshot.search(QUERIES[:1], K, exact=True)[1].tolist()
    assert taken == [True, True, False]
