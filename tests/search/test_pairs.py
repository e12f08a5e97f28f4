"""Pairs above a threshold, against comparing all with all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.errors import QueryError
from sbert_search.index.storage.manifest import Manifest, Metric, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.search import pairs as pairs_module
from sbert_search.search.pairs import Pairs, best_pairs, close_pairs, clusters, later_duplicates
from tests.index.batches import make_batch, some_documents

N_DOCS, DIM = 300, 6


def new_store(path: Path, metric: Metric = "cosine", chunks: list[int] | None = None) -> IndexStore:
    """Random vectors in few dimensions, so that many are close; in two segments, some deleted."""
    settings = VectorSettings(dim=DIM, metric=metric)
    store = IndexStore.create(path, Manifest.new(settings, {"year": "int64"}))
    counts = chunks or [1] * N_DOCS
    rng = np.random.default_rng(3)
    documents = some_documents(N_DOCS)
    for part in (slice(0, 200), slice(200, N_DOCS)):
        vectors = rng.normal(size=(sum(counts[part]), DIM)).astype(np.float32)
        with store.writer() as writer:
            writer.commit(make_batch(documents[part], vectors, counts[part]))
    with store.writer() as writer:
        writer.delete(["d7", "d8", "d250"])
    return store


def brute_force(store: IndexStore, threshold: float) -> dict[tuple[int, int], float]:
    """Score of every pair of documents at or above the threshold."""
    snapshot = store.snapshot
    docs = snapshot.lookup([document.doc_id for document in snapshot.iter_documents()])
    rows = snapshot.rows_of(docs)
    vectors: NDArray[np.float64] = snapshot.vectors(rows).astype(np.float64)
    scores, of = vectors @ vectors.T, snapshot.doc_of(rows)
    best: dict[tuple[int, int], float] = {}
    for i, j in zip(*np.nonzero(scores.astype(np.float32) >= np.float32(threshold)), strict=True):
        if of[i] < of[j]:
            pair = int(of[i]), int(of[j])
            best[pair] = max(best.get(pair, -np.inf), scores[i, j])
    return best


def collected(found: list[Pairs]) -> dict[tuple[int, int], float]:
    listed = [
        ((int(a), int(b)), float(score))
        for pairs in found
        for a, b, score in zip(pairs.first, pairs.second, pairs.scores, strict=True)
    ]
    assert len(dict(listed)) == len(listed), "a pair came twice"
    return dict(listed)


@pytest.mark.thorough
@pytest.mark.parametrize("chunks", [None, [1 + n % 4 for n in range(N_DOCS)]])
@pytest.mark.parametrize(("metric", "threshold"), [("cosine", 0.8), ("cosine", -1), ("dot", 6.0)])
def test_every_pair_above_the_threshold_is_found_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    metric: Metric,
    threshold: float,
    chunks: list[int] | None,
) -> None:
    store = new_store(tmp_path / "i", metric, chunks)
    expected = brute_force(store, threshold)
    for left, right in ((2048, 4096), (37, 50)):
        monkeypatch.setattr(pairs_module, "LEFT_ROWS", left)
        monkeypatch.setattr(pairs_module, "RIGHT_ROWS", right)
        done: list[int] = []
        found = collected(list(close_pairs(store.snapshot, threshold, done.append)))
        assert found == pytest.approx(expected, abs=1e-6)
        assert sum(done) == store.snapshot.n_rows


@pytest.mark.thorough
def test_looking_documents_up_goes_as_deep_as_there_are_close_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path / "i")
    monkeypatch.setattr(pairs_module, "NEIGHBOURS", 2)
    for threshold in (0.8, -1):
        found = collected(list(close_pairs(store.snapshot, threshold, exact=False)))
        assert found == pytest.approx(brute_force(store, threshold), abs=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("chunks", [None, [1 + n % 4 for n in range(N_DOCS)]])
def test_the_best_pairs_are_the_first_of_all_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: list[int] | None, exact: bool
) -> None:
    store = new_store(tmp_path / "i", chunks=chunks)
    expected = sorted(brute_force(store, -1).items(), key=lambda item: -item[1])[:25]
    for left, right in ((2048, 4096), (37, 50)):
        monkeypatch.setattr(pairs_module, "LEFT_ROWS", left)
        monkeypatch.setattr(pairs_module, "RIGHT_ROWS", right)
        best = best_pairs(store.snapshot, 25, exact=exact)
        assert list(zip(best.first.tolist(), best.second.tolist(), strict=True)) == [
            pair for pair, _ in expected
        ]
    least = float(best.scores[9])
    assert len(best_pairs(store.snapshot, 25, least, exact=exact)) == 10
    assert len(best_pairs(store.snapshot, 3, 1.5, exact=exact)) == 0


@pytest.mark.parametrize("exact", [True, False])
def test_equal_vectors_have_the_cosine_1(tmp_path: Path, exact: bool) -> None:
    """In float32, the cosine of equal vectors is between 0.9999998 and 1.0000002."""
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    store = IndexStore.create(
        tmp_path / "i", Manifest.new(VectorSettings(dim=8), {"year": "int64"})
    )
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(60), np.tile(vectors, (2, 1)), [1] * 60))
    found = collected(list(close_pairs(store.snapshot, 1, exact=exact)))
    assert found.keys() == {(n, n + 30) for n in range(30)}
    assert all(0.9999998 < score <= 1 for score in found.values())
    assert len(best_pairs(store.snapshot, 30, 1, exact=exact)) == 30


def test_clusters_are_what_pairs_connect() -> None:
    def pairs(*links: tuple[int, int]) -> Pairs:
        first, second = np.array(links, np.int64).T
        return Pairs(first, second, np.ones(len(links), np.float32))

    found = [pairs((5, 9), (1, 2)), pairs((9, 11), (3, 4), (2, 3)), pairs((6, 7))]
    assert clusters(found) == [[1, 2, 3, 4], [5, 9, 11], [6, 7]]
    assert clusters([]) == []
    # 3 is close only to 2, which is left out, so 3 stays; 4 is close to 3.
    assert later_duplicates(found) == [2, 4, 7, 9]
    assert later_duplicates([]) == []


def test_distances_are_refused(tmp_path: Path) -> None:
    store = new_store(tmp_path / "i", "euclidean")
    with pytest.raises(QueryError, match="pairs need an index with cosine or dot"):
        list(close_pairs(store.snapshot, 0.5))


def test_no_pairs_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="most is 0; it must be at least 1"):
        best_pairs(new_store(tmp_path / "i", "cosine").snapshot, 0)


@pytest.mark.parametrize("find", [close_pairs, lambda of, nan: best_pairs(of, 3, nan)])
def test_a_threshold_that_is_no_number_is_refused(tmp_path: Path, find: Callable[..., Any]) -> None:
    with pytest.raises(QueryError, match="threshold is NaN"):
        find(new_store(tmp_path / "i").snapshot, float("nan"))
