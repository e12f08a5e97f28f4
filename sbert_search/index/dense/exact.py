"""Exact search: blocks of vectors against blocks of queries, in bounded memory.

Float32 products find the candidates; a candidate list is wide enough to hold every row whose true
score could be among the best k. The candidates are then scored in float64 in a fixed order, so
equal vectors get equal scores and a result depends on neither block borders nor threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense.query_plan import Selection
from sbert_search.index.norms import Vectors
from sbert_search.index.storage.manifest import Metric

BLOCK_SCORES = 1 << 21  # scores of one block of queries against one block of vectors (8 MiB)
BLOCK_NUMBERS = 1 << 22  # numbers of one block of vectors that is copied (16 MiB as float32)
QUERY_BLOCK = 128
FEW = 8  # queries up to which each score is a product of its own
DOT_NUMBERS = 1 << 18  # numbers of vectors that all of few queries meet while they are in a cache
PAIR_NUMBERS = 1 << 15  # numbers of vectors scored in float64 at a time, in a cache
DENSE = 0.5  # share of wanted rows from which reading all in order is faster than picking
DENSE_ALONE = 0.2  # the same for a lone query of float32 vectors, whose time is that of reading
NONE = -3.4e38  # score of no row: nearly the lowest that float32 holds
GROUP = 64  # scores of which only the best is looked at to guess the k-th best of all
HALF_BITS = np.int32(-0x70002000)  # where float32 has the sign, 5 low exponent bits, 10 of fraction
HALF_SCALE = np.float32(2.0**112)  # between the exponents of float16 and float32
MAX_TIES = 10_000  # rows kept beyond k when that many lie within rounding error of the k-th


_one_product = Lock()  # each has all cores; the threads of several at once would spin for them


def _renew_lock() -> None:
    """Free the lock in a forked child, where the thread that held it is not."""
    global _one_product
    _one_product = Lock()


os.register_at_fork(after_in_child=_renew_lock)


class TopK:
    """The best k rows of each query so far; equal scores go to the lower row.

    Attributes:
        scores: float32 (n_queries, k), falling; -inf where there is none.
        rows: int64 (n_queries, k); -1 where there is none.
    """

    def __init__(self, n_queries: int, k: int) -> None:
        self.scores = np.full((n_queries, k), -np.inf, np.float32)
        self.rows = np.full((n_queries, k), -1, np.int64)

    @property
    def k(self) -> int:
        """Rows wanted of each query."""
        return self.scores.shape[1]

    def take(self, queries: NDArray[np.bool_] | slice) -> TopK:
        """Give the best rows of some queries: a copy for marks (n_queries,), a view for a slice."""
        part = TopK.__new__(TopK)
        part.scores, part.rows = self.scores[queries], self.rows[queries]
        return part

    def offer(
        self, queries: NDArray[np.int64], rows: NDArray[np.int64], scores: NDArray[np.float32]
    ) -> None:
        """Take candidates: query, row and score, each (n,)."""
        if len(queries) == 0:
            return
        n_queries, k = self.scores.shape
        if n_queries == 1:
            self._offer_one(rows, scores)
            return
        query, row, score = queries, rows, scores
        have = self.rows >= 0
        if have.any():
            query = np.concatenate([np.nonzero(have)[0], query])
            row = np.concatenate([self.rows[have], row])
            score = np.concatenate([self.scores[have], score])
        order = np.lexsort((row, -score, query))
        query, row, score = query[order], row[order], score[order]
        start = np.searchsorted(query, np.arange(n_queries))
        rank = np.arange(len(query)) - start[query]
        best = rank < k
        self.scores[query[best], rank[best]] = score[best]
        self.rows[query[best], rank[best]] = row[best]

    def _offer_one(self, row: NDArray[np.int64], score: NDArray[np.float32]) -> None:
        """Take candidates of the only query, in few steps: they are what it waits for."""
        if self.rows[0, 0] >= 0:
            row, score = np.append(self.rows, row), np.append(self.scores, score)
        best = np.lexsort((row, -score))[: self.k]
        self.rows[0, : len(best)], self.scores[0, : len(best)] = row[best], score[best]


def scan(
    queries: NDArray[np.float32],
    vectors: Vectors,
    top: TopK,
    rows: NDArray[np.int64],
    *,
    metric: Metric,
    max_norm: float,
    selection: Selection | None = None,
) -> None:
    """Offer the best rows of some vectors to `top`.

    Args:
        queries: float32 (n_queries, dim).
        vectors: float32 or float16 (n_rows, dim).
        top: Best rows so far; also says what k is.
        rows: Row number of each vector, int64 (n_rows,), rising.
        metric: How vectors compare.
        max_norm: Largest Euclidean length of a vector.
        selection: Which vectors take part; None means all.
    """
    alone = len(queries) == 1 and vectors.dtype == np.float32
    dense = DENSE_ALONE if alone else DENSE
    # Above a share of selected rows, reading all in order and dropping the others afterwards is
    # faster than picking (docs/decisions.md: A mask over more than half the rows is read in order).
    masked = selection is not None and selection.n_selected > dense * len(selection.marks)
    positions = None if selection is None or masked else selection.positions
    norms = np.linalg.norm(queries.astype(np.float64), axis=1)
    slack = _slack(norms, max_norm, queries.shape[1], metric)
    found = _Candidates(top.k, _thresholds(top, norms, metric) - slack, slack)
    for start, block in _blocks(vectors, positions, len(queries)):
        scores = _fast_scores(queries, block, metric)
        if masked and selection is not None:
            scores[:, selection.excluded_within(start, start + len(block))] = -np.inf
        found.add(start, scores)
    query, at = found.finish()
    at = at if positions is None else positions[at]
    top.offer(query, rows[at], exact_scores(queries, vectors, query, at, metric))


def exact_scores(
    queries: NDArray[np.float32],
    vectors: Vectors,
    query: NDArray[np.int64],
    at: NDArray[np.int64],
    metric: Metric,
) -> NDArray[np.float32]:
    """Score pairs of a query and a vector in float64, each in the same order of additions.

    Args:
        queries: float32 (n_queries, dim).
        vectors: (n_rows, dim).
        query: Which query, int64 (n,); not read where there is only one.
        at: Which vector, int64 (n,).
        metric: Cosine and dot give the inner product, euclidean the negative distance.

    Returns:
        float32 (n,); higher is better.
    """
    wide = queries.astype(np.float64)
    step = max(1, PAIR_NUMBERS // queries.shape[1])
    scores = [
        _pair_scores(
            wide if len(wide) == 1 else wide.take(query[i : i + step], axis=0),
            vectors.take(at[i : i + step], axis=0),
            metric,
        )
        for i in range(0, len(at), step)
    ]
    return scores[0] if len(scores) == 1 else np.concatenate([*scores, np.empty(0, np.float32)])


def _pair_scores(
    left: NDArray[np.float64], vectors: Vectors, metric: Metric
) -> NDArray[np.float32]:
    """Score each query (n, dim), or one (1, dim), with its vector (n, dim), in float64."""
    right = vectors.astype(np.float64)
    if metric == "euclidean":
        right -= left
        right *= right
        distances: NDArray[np.float64] = np.sqrt(np.add.reduce(right, axis=1))
        return (-distances).astype(np.float32)
    right *= left
    products: NDArray[np.float64] = np.add.reduce(right, axis=1)
    return products.astype(np.float32)


class _Candidates:
    """Pairs of query and position whose fast score may be among the best k."""

    def __init__(self, k: int, floor: NDArray[np.float64], slack: NDArray[np.float64]) -> None:
        self._k, self._floor, self._slack = k, np.maximum(floor, NONE), slack
        none = np.empty(0, np.int64)
        self._kept: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = [
            (none, none, none.astype(np.float32))
        ]
        self._n_kept = 0
        self._limit = 4 * len(floor) * (k + 64)

    def add(self, start: int, scores: NDArray[np.float32]) -> None:
        """Take the scores of a block (n_queries, n_block) whose first position is ``start``."""
        n_block = scores.shape[1]
        if n_block > self._k and (self._floor == NONE).any():
            self._floor = np.maximum(self._floor, _kth_best(scores, self._k) - self._slack)
        floor = np.nextafter(self._floor.astype(np.float32), np.float32(-np.inf))
        found = np.flatnonzero(scores >= floor[:, None])  # of two dimensions it is far slower
        query, at = np.divmod(found, n_block)
        self._kept.append((query, at + start, scores[query, at]))
        self._n_kept += len(query)
        if self._n_kept > self._limit:
            self._prune()

    def finish(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the pairs left: query (n,) and position (n,)."""
        if len(self._kept) > 2:  # those of one block had the floor that all of it sets
            self._prune()
        query, at, _ = self._kept[-1]
        return query, at

    def _prune(self) -> None:
        query, at, score = (np.concatenate(part) for part in zip(*self._kept, strict=True))
        order = np.lexsort((at, -score, query))
        query, at, score = query[order], at[order], score[order]
        first = np.searchsorted(query, np.arange(len(self._floor) + 1))
        rank = np.arange(len(query)) - first[query]
        full = np.diff(first) >= self._k
        kth = score[first[:-1][full] + self._k - 1]
        self._floor[full] = np.maximum(self._floor[full], kth - self._slack[full])
        keep = (score >= self._floor[query]) & (rank < self._k + MAX_TIES)
        self._kept = [(query[keep], at[keep], score[keep])]
        self._n_kept = int(keep.sum())
        self._limit = max(self._limit, 2 * self._n_kept)


def _kth_best(scores: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """Return a score of each row of (n_queries, n), n > k, that k of it or more reach."""
    n_queries, n = scores.shape
    n_groups = n // GROUP
    if n_groups >= 4 * k:  # the k-th best of the groups' best is hardly below it
        # A group is every n_groups-th score: the best of each is then found many at a time.
        scores = scores[:, : n_groups * GROUP].reshape(n_queries, GROUP, n_groups).max(axis=1)
    at = scores.shape[1] - k
    best: NDArray[np.float32] = np.partition(scores, at, axis=1)[:, at]
    return best


def _blocks(
    vectors: Vectors, positions: NDArray[np.int64] | None, n_queries: int
) -> Iterator[tuple[int, Vectors]]:
    n_rows = len(vectors) if positions is None else len(positions)
    step = max(1, BLOCK_SCORES // n_queries)
    if positions is not None or vectors.dtype != np.float32:
        step = max(1, min(step, BLOCK_NUMBERS // vectors.shape[1]))
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        yield start, vectors[start:stop] if positions is None else vectors[positions[start:stop]]


def _fast_scores(
    queries: NDArray[np.float32], block: Vectors, metric: Metric
) -> NDArray[np.float32]:
    """Score a block with BLAS, (n_queries, n_block); euclidean as ``2 q.v - v.v``.

    Few queries are multiplied with one vector at a time. For so few a matrix product reads vectors
    at half the speed, and its threads wait for each other: on a busy machine for a turn of the
    scheduler, a hundred times what the work takes.
    """
    few = len(queries) <= FEW
    step = max(1, DOT_NUMBERS // block.shape[1]) if few else len(block)
    scores = np.empty((len(queries), len(block)), np.float32)
    for start in range(0, len(block), step):
        part, found = _widened(block[start : start + step]), scores[:, start : start + step]
        if few:
            np.vecdot(part, queries[:, None], out=found)
        else:
            with _one_product:
                np.matmul(queries, part.T, out=found)
        if metric == "euclidean":
            found *= 2.0
            found -= np.einsum("nd,nd->n", part, part)
    return scores


def _widened(vectors: Vectors) -> NDArray[np.float32]:
    """Give vectors, all finite, as float32: from float16 at seven times the speed of `astype`."""
    if vectors.dtype != np.float16:
        return vectors.astype(np.float32, copy=False)
    bits = vectors.view(np.int16).astype(np.int32)  # the sign fills the upper half
    bits <<= 13
    bits &= HALF_BITS
    wide = bits.view(np.float32)
    wide *= HALF_SCALE
    return wide


def _slack(
    norms: NDArray[np.float64], max_norm: float, dim: int, metric: Metric
) -> NDArray[np.float64]:
    """Bound twice the rounding error of a fast score, (n_queries,).

    Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1: a float32 dot
    product errs by at most ``dim * 2**-24`` of the product of the lengths, to first order.
    """
    scale = (norms + max_norm) ** 2 if metric == "euclidean" else norms * max_norm
    return 2.0 * (dim + 4) * 2.0**-24 * scale


def _thresholds(top: TopK, norms: NDArray[np.float64], metric: Metric) -> NDArray[np.float64]:
    """Return the k-th best score so far on the scale of the fast scores, (n_queries,)."""
    worst = top.scores[:, -1].astype(np.float64)
    return norms**2 - worst**2 if metric == "euclidean" else worst
