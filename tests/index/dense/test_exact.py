"""The exact scan under several threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sbert_search.index.dense import exact
from sbert_search.index.dense.exact import FEW, TopK, as_float32, scan


class Watched(np.ndarray[Any, Any]):
    """Queries that count how many products are under way."""

    running = most = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        product = ufunc is np.matmul
        Watched.running += product
        Watched.most = max(Watched.most, Watched.running)
        time.sleep(0.002 * product)
        Watched.running -= product
        plain = [np.asarray(part) if isinstance(part, Watched) else part for part in inputs]
        return getattr(ufunc, method)(*plain, **options)


def test_products_of_several_threads_take_turns() -> None:
    vectors = np.eye(64, dtype=np.float32)
    rows = np.arange(64)

    def nearest(row: int) -> int:
        top = TopK.empty(FEW + 1, 1)
        queries = np.tile(vectors[row], (FEW + 1, 1)).view(Watched)
        scan(queries, vectors, top, rows, metric="dot", max_norm=1.0)
        return int(top.rows[0, 0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(nearest, range(64))) == rows.tolist()
    assert Watched.most == 1


def test_half_precision_widens_as_astype_does() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    assert (as_float32(halves).view(np.int32) == halves.astype(np.float32).view(np.int32)).all()


def test_pairs_kept_by_a_prune_are_joined_with_those_of_the_last_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact, "BLOCK_SCORES", 400)
    vectors = np.random.default_rng(0).normal(size=(700, 8)).astype(np.float32)
    vectors[:350] = vectors[0] * 10  # more ties with the k-th best than are kept without a prune
    top = TopK.empty(1, 3)
    max_norm = float(np.linalg.norm(vectors[0]))
    scan(vectors[:1], vectors, top, np.arange(700), metric="dot", max_norm=max_norm)
    assert top.rows.tolist() == [[0, 1, 2]]


def test_any_number_of_blocks_and_ties_gives_the_best_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small integers: scores are exact, and most of them are equal to many others."""
    draw = np.random.default_rng(5)
    for _ in range(150):
        n, k, n_queries = (int(draw.integers(1, most)) for most in (900, 12, 4))
        monkeypatch.setattr(exact, "BLOCK_SCORES", int(draw.integers(20, 900)))
        vectors = draw.integers(-1, 2, size=(n, int(draw.integers(1, 6)))).astype(np.float32)
        queries = draw.integers(-1, 2, size=(n_queries, vectors.shape[1])).astype(np.float32)
        top = TopK.empty(n_queries, k)
        max_norm = float(np.linalg.norm(vectors, axis=1).max())
        scan(queries, vectors, top, np.arange(n), metric="dot", max_norm=max_norm)
        scores = queries.astype(np.int64) @ vectors.T.astype(np.int64)  # no BLAS
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        assert (top.rows[:, : best.shape[1]] == best).all()
        assert (top.rows[:, best.shape[1] :] == -1).all()


def test_the_nearest_of_many_vectors_within_rounding_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Far from 0, float32 distances differ by more from the exact ones than from each other."""
    monkeypatch.setattr(exact, "BLOCK_SCORES", 2000)
    monkeypatch.setattr(exact, "MAX_TIES", 100)
    draw = np.random.default_rng(1)
    vectors = (300 + 0.01 * draw.normal(size=(3000, 8))).astype(np.float32)
    at = np.array([0, 1400, 2999])
    top = TopK.empty(3, 2)
    max_norm = float(np.linalg.norm(vectors, axis=1).max())
    scan(vectors[at], vectors, top, np.arange(3000), metric="euclidean", max_norm=max_norm)
    wide = vectors.astype(np.float64)
    distances = np.linalg.norm(wide[None] - wide[at][:, None], axis=2)
    assert (top.rows == np.argsort(distances, axis=1, kind="stable")[:, :2]).all()
    assert top.rows[:, 0].tolist() == at.tolist()
