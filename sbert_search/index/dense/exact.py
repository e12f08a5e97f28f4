"""Exact search: score the queries with one block of vectors at a time, in bounded memory.

Float32 products find the candidates: every row whose exact score could be among the best k. They
are then scored in float64, each in the same order of additions. So equal vectors get equal scores,
and a result does not depend on the size of the blocks or the number of threads.

A position is the index of a vector in its segment; a row is its number in the whole index.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense.query_plan import Selection
from sbert_search.index.norms import Vectors
from sbert_search.index.storage.manifest import Metric, VectorSettings

if TYPE_CHECKING:
    from sbert_search.index.dense.faiss_file import FaissFile
    from sbert_search.index.dense.segment_search import JoinedSegments

BLOCK_SCORES = 1 << 21  # largest number of float32 scores of one block (8 MiB)
BLOCK_ELEMENTS = 1 << 22  # limit of elements in a block that is copied: float16 or selected vectors
QUERY_BLOCK = 128  # largest number of queries that callers score in one scan
FEW = 8  # up to this many queries are scored by dot products, more by a matrix product
DOT_ELEMENTS = 1 << 18  # elements of a block that stays in the CPU cache for up to FEW queries
PAIR_ELEMENTS = 1 << 15  # elements scored in float64 at a time, so that they stay in the CPU cache
DENSE = 0.5  # share of selected rows above which all rows are read in order, which is faster
DENSE_SINGLE = 0.2  # DENSE for one query on float32 vectors: most of its time is reading
NO_BOUND = -3.4e38  # bound before any score is known: nearly the lowest float32
GROUP = 64  # scores in a group; the maxima of the groups give a lower bound of the k-th best score
HALF_BITS = np.int32(-0x70002000)  # float32 bits that float16 fills: sign, 5 exponent, 10 fraction
HALF_SCALE = np.float32(2.0**112)  # 2 to the power of the difference of exponent biases (127 - 15)
MAX_TIES = 10_000  # rows with nearly the k-th score that are kept before they are scored exactly

# A matrix product uses all cores. The threads of several products at once would spin while waiting
# for each other, so a lock admits one product at a time. See docs/decisions.md: Up to eight
# queries are scored by dot products.

_one_product = Lock()


def _renew_lock() -> None:
    """Replace the lock in a forked child, where no thread releases it if the parent held it."""
    global _one_product
    _one_product = Lock()


os.register_at_fork(after_in_child=_renew_lock)


class TopK:
    """The best k rows of each query so far; among equal scores, the lower row comes first.

    ``scores`` is float32 (n_queries, k), descending; -inf where there is no row. ``rows`` is int64
    (n_queries, k); -1 where there is no row.
    """

    def __init__(self, scores: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        self.scores, self.rows = scores, rows
        self.k: int = scores.shape[1]  # number of rows kept for each query

    @classmethod
    def empty(cls, n_queries: int, k: int) -> TopK:
        """Make a result that has no rows yet."""
        scores = np.full((n_queries, k), -np.inf, np.float32)
        return cls(scores, np.full((n_queries, k), -1, np.int64))

    def take(self, queries: NDArray[np.bool_] | slice) -> TopK:
        """Return results of some queries: a copy for a mask (n_queries,), a view for a slice."""
        return TopK(self.scores[queries], self.rows[queries])

    def offer(
        self, queries: NDArray[np.int64], rows: NDArray[np.int64], scores: NDArray[np.float32]
    ) -> None:
        """Add candidates (query index, row and score, each (n,)); keep the k best of each query."""
        if len(queries) == 0:
            return
        query, row, score = queries, rows, scores
        if len(self.rows) == 1:  # as below, in less time
            if self.rows[0, 0] >= 0:
                row, score = np.append(self.rows, row), np.append(self.scores, score)
            first = np.lexsort((row, -score))[: self.k]
            self.rows[0, : len(first)], self.scores[0, : len(first)] = row[first], score[first]
            return
        have = self.rows >= 0
        if have.any():
            query = np.concatenate([np.nonzero(have)[0], query])
            row = np.concatenate([self.rows[have], row])
            score = np.concatenate([self.scores[have], score])
        order = np.lexsort((row, -score, query))
        query, row, score = query[order], row[order], score[order]
        start = np.searchsorted(query, np.arange(len(self.rows)))
        rank = np.arange(len(query)) - start[query]
        best = rank < self.k
        self.scores[query[best], rank[best]] = score[best]
        self.rows[query[best], rank[best]] = row[best]


class Rows(Protocol):
    """Vectors that are searched together, such as those of a segment."""

    @property
    def vectors(self) -> Vectors:
        """The vectors, (n_rows, dim)."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Number that a search returns for each vector, such as its row in the index; ascending."""

    @property
    def n_rows(self) -> int:
        """Number of vectors."""

    @property
    def max_norm(self) -> float:
        """Largest norm of a vector."""


def offer_nearest(
    top: TopK,
    queries: NDArray[np.float32],
    segment: Rows,
    ann: FaissFile | JoinedSegments | None,
    selection: Selection | None,
    settings: VectorSettings,
    *,
    fill: bool = True,
) -> None:
    """Offer the best rows of a segment to `top`, by its FAISS file or, without one, by a scan.

    The queries are normalised for cosine. ``fill``: search again if FAISS finds fewer than k rows;
    other segments may have enough.
    """
    if ann is None or ann.index is None:
        scan(
            queries,
            segment.vectors,
            top,
            segment.rows,
            metric=settings.metric,
            max_norm=segment.max_norm,
            selection=selection,
        )
        return
    from sbert_search.index.dense.segment_search import offer_approximate

    offer_approximate(top, queries, segment, ann.index, selection, settings, ann.on_gpu, fill=fill)


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
    """Offer the best of vectors (n_rows, dim) to `top`; ``rows`` (n_rows,) must ascend."""
    single = len(queries) == 1 and vectors.dtype == np.float32
    dense = DENSE_SINGLE if single else DENSE
    # If more than the share `dense` of the rows is selected, reading all rows in order and dropping
    # the others afterwards is faster than reading only the selected rows, in random order.
    masked = selection is not None and selection.n_selected > dense * len(selection.marks)
    positions = None if selection is None or masked else selection.positions

    def offer(query: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        at = at if positions is None else positions[at]
        top.offer(query, rows[at], exact_scores(queries, vectors, query, at, metric))

    candidates = _Candidates(top, queries, max_norm, metric, offer)
    for start, block in _blocks(vectors, positions, len(queries)):
        scores = _fast_scores(queries, block, metric)
        if masked and selection is not None:
            scores[:, selection.excluded_within(start, start + len(block))] = -np.inf
        candidates.add(start, scores)
    candidates.finish()


def exact_scores(
    queries: NDArray[np.float32],
    vectors: Vectors,
    query: NDArray[np.int64],
    at: NDArray[np.int64],
    metric: Metric,
) -> NDArray[np.float32]:
    """Score pairs of a query and a vector in float64, float32 (n,), higher is better.

    ``query`` and ``at`` have the indices of each pair, (n,); ``query`` is not read where there is
    only one query. Cosine gives the inner product, since its vectors have norm 1; euclidean gives
    the negative distance.
    """
    # The reason is in docs/decisions.md: Exact search scores twice. Larger blocks are slower.
    wide = queries.astype(np.float64)
    step = max(1, PAIR_ELEMENTS // queries.shape[1])
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
    """Score each query of (n, dim), or the query of (1, dim), with its vector of (n, dim).

    `np.add.reduce` adds the float64 products of every pair in the same order; BLAS would not.
    """
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
    """Pairs of a query and a scanned vector's position whose exact score may be among the best k.

    ``offer`` scores pairs, given as index of the query (n,) and position (n,), and keeps the best.

    Each query has a floor: a lower bound of the k-th best float32 score so far, less a slack. The
    float32 scores of the best k by exact score are all at least the floor, so pairs below it are
    dropped.

    The slack is twice a bound on the rounding error of a float32 score: twice, since both the k-th
    best score and the score compared with it may err. The 4 added to the dimension covers the
    operations around the dot product.

    Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1: a float32 dot
    product errs by at most ``dim * 2**-24`` of the product of the norms, to first order.
    """

    def __init__(
        self,
        top: TopK,
        queries: NDArray[np.float32],
        max_norm: float,
        metric: Metric,
        offer: Callable[[NDArray[np.int64], NDArray[np.int64]], None],
    ) -> None:
        norms = np.linalg.norm(queries.astype(np.float64), axis=1)
        floor, scale = top.scores[:, -1].astype(np.float64), norms * max_norm
        if metric == "euclidean":  # on the scale of `_fast_scores`
            floor, scale = norms**2 - floor**2, (norms + max_norm) ** 2
        self._slack = 2.0 * (queries.shape[1] + 4) * 2.0**-24 * scale  # (n_queries,)
        self._floor = np.maximum(floor - self._slack, NO_BOUND)  # (n_queries,)
        self._k, self._offer = top.k, offer
        self._kept: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self._n_kept = 0
        self._limit = 4 * len(queries) * (self._k + 64)

    def add(self, start: int, scores: NDArray[np.float32]) -> None:
        """Add the scores of a block (n_queries, n_block) whose first position is ``start``."""
        n_block = scores.shape[1]
        if n_block > self._k and (self._floor == NO_BOUND).any():
            self._floor = np.maximum(self._floor, _kth_best(scores, self._k) - self._slack)
        floor = np.nextafter(self._floor.astype(np.float32), np.float32(-np.inf))
        reached = np.flatnonzero(scores >= floor[:, None])  # np.nonzero in 2 dimensions is slower
        query, at = np.divmod(reached, n_block)
        self._kept.append((query, at + start, scores[query, at]))
        self._n_kept += len(query)
        if self._n_kept > self._limit:
            self._prune()

    def finish(self) -> None:
        """Offer the remaining pairs."""
        if len(self._kept) > 1:  # otherwise `add` used the final floors already
            self._prune()
        for query, at, _ in self._kept:
            self._offer(query, at)

    def _prune(self) -> None:
        """Raise the floors as far as the pairs kept so far allow, and drop the pairs below them.

        `add` sets the floors by one block; if later blocks score better and better, it would keep
        nearly all pairs. If more than `MAX_TIES` remain, as of many vectors that are nearly equal,
        they are offered, so that the memory is bounded.
        """
        query, at, score = (np.concatenate(part) for part in zip(*self._kept, strict=True))
        order = np.lexsort((at, -score, query))
        query, at, score = query[order], at[order], score[order]
        first = np.searchsorted(query, np.arange(len(self._floor) + 1))
        rank = np.arange(len(query)) - first[query]
        full = np.diff(first) >= self._k
        kth = score[first[:-1][full] + self._k - 1]
        self._floor[full] = np.maximum(self._floor[full], kth - self._slack[full])
        keep = score >= self._floor[query]
        self._kept = [(query[keep], at[keep], score[keep])]
        self._n_kept = int(keep.sum())
        if (rank[keep] >= self._k + MAX_TIES).any():
            self._offer(query[keep], at[keep])
            self._kept, self._n_kept = [], 0
        self._limit = max(self._limit, 2 * self._n_kept)


def _kth_best(scores: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """Return a lower bound of the k-th best of n > k scores of each query, (n_queries,).

    Many scores are divided into groups. The k-th best of the groups' maxima is at most the k-th
    best of all scores; with at least 4 k groups, the difference is small.
    """
    n_queries, n = scores.shape
    n_groups = n // GROUP
    if n_groups >= 4 * k:
        # A group is every n_groups-th score, so that NumPy compares contiguous rows.
        scores = scores[:, : n_groups * GROUP].reshape(n_queries, GROUP, n_groups).max(axis=1)
    at = scores.shape[1] - k
    best: NDArray[np.float32] = np.partition(scores, at, axis=1)[:, at]
    return best


def _blocks(
    vectors: Vectors, positions: NDArray[np.int64] | None, n_queries: int
) -> Iterator[tuple[int, Vectors]]:
    """Yield blocks of all vectors, or of those at ``positions``, with each first index."""
    n_rows = len(vectors) if positions is None else len(positions)
    step = max(1, BLOCK_SCORES // n_queries)
    if positions is not None or vectors.dtype != np.float32:
        step = max(1, min(step, BLOCK_ELEMENTS // vectors.shape[1]))
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        yield start, vectors[start:stop] if positions is None else vectors[positions[start:stop]]


def _fast_scores(
    queries: NDArray[np.float32], block: Vectors, metric: Metric
) -> NDArray[np.float32]:
    """Score a block with BLAS in float32, (n_queries, n_block); euclidean as ``2 q.v - v.v``.

    For up to `FEW` queries, a matrix product reads vectors at half the speed of dot products, and
    its threads wait for each other: on a busy machine up to a hundred times as long as the work
    (docs/decisions.md: Up to eight queries are scored by dot products).
    """
    few = len(queries) <= FEW
    step = max(1, DOT_ELEMENTS // block.shape[1]) if few else len(block)
    scores = np.empty((len(queries), len(block)), np.float32)
    for start in range(0, len(block), step):
        part, out = as_float32(block[start : start + step]), scores[:, start : start + step]
        if few:
            np.vecdot(part, queries[:, None], out=out)
        else:
            # BLAS may set a flag for lanes of its registers that no score is in (OpenBLAS #1924).
            with _one_product, np.errstate(invalid="ignore"):
                np.matmul(queries, part.T, out=out)
        if metric == "euclidean":
            out *= 2.0
            out -= np.einsum("nd,nd->n", part, part)
    return scores


def as_float32(vectors: Vectors) -> NDArray[np.float32]:
    """Convert finite vectors to float32; float16 is converted seven times as fast as by `astype`.

    The bits of float16 are moved to their places in float32. A multiplication by a power of two
    then corrects the exponent, also for subnormal numbers.
    """
    if vectors.dtype != np.float16:
        return vectors.astype(np.float32, copy=False)
    bits = vectors.view(np.int16).astype(np.int32)  # sign extension fills the upper half
    bits <<= 13
    bits &= HALF_BITS
    wide = bits.view(np.float32)
    wide *= HALF_SCALE
    return wide
