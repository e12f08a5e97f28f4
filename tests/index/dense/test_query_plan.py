"""Filtered search gives k rows whenever k match, nearly all of them the right ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.index.dense import segment_search
from sbert_search.index.dense.query_plan import Plan, RowMask, plan
from sbert_search.index.settings import IndexSpec
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import merge_policy
from tests.index.batches import make_batch, some_documents
from tests.index.tuning.conftest import DIM, clustered

N_ROWS, LIVE = 6_000, 5_800
SPECS = {
    "HNSW16": IndexSpec(factory="HNSW16", ef_search=64),
    "HNSW16,SQ8": IndexSpec(factory="HNSW16,SQ8", ef_search=64),
    "IVF64,Flat": IndexSpec(factory="IVF64,Flat", nprobe=8),
    "IVF64,PQ8x4fs": IndexSpec(factory="IVF64,PQ8x4fs", nprobe=8, refine=30),
    "RR16,IVF64,SQ8": IndexSpec(factory="RR16,IVF64,SQ8", nprobe=8),
    "SQ8": IndexSpec(factory="SQ8"),
    "PQ16x4fs": IndexSpec(factory="PQ16x4fs", refine=60),
}


@pytest.fixture(scope="module", params=SPECS)
def snapshot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    path = tmp_path_factory.mktemp("selection") / "i"
    store = IndexStore.create(
        path, Manifest.new(VectorSettings(dim=DIM, spec=SPECS[request.param]))
    )
    with pytest.MonkeyPatch.context() as patch, store.writer() as writer:
        patch.setattr(merge_policy, "MIN_ANN_ROWS", 500)
        writer.commit(make_batch(some_documents(N_ROWS), clustered(N_ROWS, seed=0)))
        writer.finish_build()
        writer.delete([f"d{i}" for i in range(0, 200)])
    assert store.snapshot.manifest.segments[0].vectors["v1"].ann
    return store.snapshot


def check(snapshot: Snapshot, marks: NDArray[np.bool_]) -> float:
    """Search 40 queries under a filter; returns recall@10."""
    queries, k = clustered(40, seed=3), 10
    n_selected = int(marks.sum())
    _, rows = snapshot.search(queries, k, RowMask((marks,), (LIVE,), n_selected, n_selected))
    assert ((rows >= 0).sum(axis=1) == min(k, n_selected)).all()
    assert marks[rows[rows >= 0]].all()
    vectors = np.asarray(snapshot.segments[0].vectors)
    scores = queries @ vectors.T
    scores[:, ~marks] = -np.inf
    best = np.argsort(-scores, axis=1)[:, : min(k, n_selected)]
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(rows, best, strict=True)]))


@pytest.mark.parametrize("share", [1.0, 0.95, 0.5, 0.1, 0.01, 0.001])
def test_k_rows_that_match_at_any_selectivity(snapshot: Snapshot, share: float) -> None:
    marks = np.random.default_rng(1).random(N_ROWS) < share
    marks[:200] = False  # deleted
    assert check(snapshot, marks) >= 0.95


def test_filters_that_go_with_or_against_the_query_keep_k_and_recall(snapshot: Snapshot) -> None:
    vectors = np.asarray(snapshot.segments[0].vectors)
    nearness = clustered(40, seed=3).sum(axis=0) @ vectors.T
    order = np.argsort(nearness)
    for part in (order[:300], order[-300:], order[:3000], order[-7:]):
        marks = np.zeros(N_ROWS, bool)
        marks[part] = True
        marks[:200] = False
        assert check(snapshot, marks) >= 0.9


def test_nothing_matches_and_everything_matches(snapshot: Snapshot) -> None:
    none = np.zeros(N_ROWS, bool)
    _, rows = snapshot.search(clustered(3, seed=3), 5, RowMask((none,), (LIVE,), 0, 0))
    assert (rows == -1).all()
    _, live = snapshot.search(clustered(3, seed=3), 5)
    assert (live >= 200).all()


def test_neighbours_that_do_not_match_cost_a_wider_search_and_no_scan(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The few candidates fetched beyond k are all dropped for this query."""
    query = clustered(1, seed=3)
    nearest_first = np.argsort(-(np.asarray(snapshot.segments[0].vectors) @ query[0]))
    nearest_first = nearest_first[nearest_first >= 200]  # live
    marks = np.zeros(N_ROWS, bool)
    marks[nearest_first[60:]] = True
    monkeypatch.setattr(segment_search, "offer_nearest", lambda *_: pytest.fail("it was scanned"))
    _, rows = snapshot.search(query, 10, RowMask((marks,), (LIVE,), LIVE - 60, LIVE - 60))
    assert set(rows[0]) == set(nearest_first[60:70])


def routes(
    spec: IndexSpec,
    shares: Sequence[float],
    *,
    n_queries: int = 1,
    n_live: int = 1_000_000,
    takes_bitmap: bool = True,
) -> list[Plan]:
    n_rows = 1_000_000
    asked = partial(plan, n_live=n_live, k=10, n_queries=n_queries, takes_bitmap=takes_bitmap)
    return [asked(spec, n_rows, int(n_rows * share)) for share in shares]


def test_the_route_goes_by_selectivity() -> None:
    shares = [1.0, 0.99, 0.5, 0.1, 0.001]
    graph = routes(IndexSpec(factory="HNSW32", ef_search=64), shares)
    assert [p.route for p in graph] == ["fetch", "fetch", "select", "select", "scan"]
    assert [p.spec.ef_search for p in graph[:4]] == [64, 65, 182, 2024]
    assert [p.n_candidates for p in graph[:2]] == [10, 12]
    lists = routes(IndexSpec(factory="IVF2048,SQ8", nprobe=16), shares)
    assert [p.route for p in lists] == ["fetch", "fetch", "select", "select", "scan"]
    assert [p.spec.nprobe for p in lists[:4]] == [16, 17, 46, 506]
    dead = routes(IndexSpec(factory="HNSW32", ef_search=64), [0.9], n_live=900_000)
    assert (dead[0].spec.ef_search, dead[0].n_candidates) == (72, 16)
    dead = routes(IndexSpec(factory="IVF2048,SQ8", nprobe=16), [0.9], n_live=900_000)
    assert dead[0].spec.nprobe == 16
    flat = routes(IndexSpec(factory="PQ192x4fs"), shares, takes_bitmap=False)
    assert [p.route for p in flat] == ["fetch", "fetch", "scan", "scan", "scan"]
    together = routes(IndexSpec(factory="HNSW32", ef_search=64), [0.1], n_queries=128)
    assert together[0].route == "scan"


def test_the_planner_is_asked(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its fallback a FAISS search that comes back short would lose rows."""
    monkeypatch.setattr(segment_search, "offer_nearest", lambda *_: None)
    marks = np.zeros(N_ROWS, bool)
    marks[300:305] = True
    _, rows = snapshot.search(clustered(2, seed=3), 5, RowMask((marks,), (LIVE,), 5, 5))
    assert (rows == -1).all()
