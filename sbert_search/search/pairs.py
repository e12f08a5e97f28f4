"""Paraphrase mining: all pairs of documents whose vectors are close, and clusters of duplicates.

A row is a passage of the index. The exact way compares every row with every later row; it computes
the matrix of their scores in tiles. The approximate way, for an index with FAISS files, searches
the index for the neighbours of each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import Advance
from sbert_search.errors import QueryError
from sbert_search.index.dense.exact import exact_scores
from sbert_search.index.norms import least_score
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Metric

LEFT_ROWS, RIGHT_ROWS = 2048, 4096  # height and width of a tile, whose scores take 32 MiB
NEIGHBOURS = 64  # neighbours of each row that the approximate way fetches first

# Lowest finite score. The score -inf marks pairs of rows to leave out.
_LEAST = float(np.finfo(np.float32).min)
_ROUNDING = 1e-5  # largest error of a float32 dot product, relative to the norms of its vectors


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of documents, each named by the row of its first passage.

    Documents with several passages have the score of the two that are closest to each other.
    """

    first: NDArray[np.int64]  # the earlier document, (n,)
    second: NDArray[np.int64]  # the later document, (n,)
    scores: NDArray[np.float32]  # (n,); a cosine is at most 1

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, positions: NDArray[np.int64]) -> Pairs:
        """Return the pairs at some positions, in that order."""
        return Pairs(self.first[positions], self.second[positions], self.scores[positions])


@dataclass(frozen=True, slots=True)
class _Rows:
    """The live (not deleted) rows of an index."""

    snapshot: Snapshot
    rows: NDArray[np.int64]  # ascending, (n,)
    docs: NDArray[np.int64]  # row of the first passage of each row's document, (n,)

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Rows:
        if snapshot.settings.metric == "euclidean":
            raise QueryError(
                f"{snapshot.path} has the metric euclidean; pairs need an index with cosine or dot."
            )
        rows = snapshot.live_rows()
        return cls(snapshot, rows, snapshot.doc_of(rows))

    def vectors(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.snapshot.vectors(self.rows[start:stop])

    def borders(self) -> list[int]:
        """Return the borders of blocks of about `LEFT_ROWS` rows that split no document."""
        positions = np.arange(0, len(self.docs), LEFT_ROWS)
        begins = np.searchsorted(self.docs, self.docs[positions])
        return [*np.unique(begins).tolist(), len(self.docs)]


@dataclass(frozen=True, slots=True)
class _Limit:
    """The limits that decide which pairs are kept."""

    floor: Callable[[], float]  # returns the lowest score that is kept, which may rise
    # Number of pairs of rows to keep, the best first: of each tile in the exact way, of each row in
    # the approximate way; None: all.
    most: int | None = None


def close_pairs(
    snapshot: Snapshot,
    threshold: float,
    advance: Advance = lambda n: None,
    *,
    exact: bool | None = None,
) -> Iterator[Pairs]:
    """Yield each pair of documents with a score of at least a threshold, in blocks, each pair once.

    The metric of the index, cosine or dot product, gives the scores. Cosines may be lower than the
    threshold by the rounding error of `least_score`. ``exact``: compare all rows with each other;
    None: only if the index has no FAISS file. If every document has one passage, the exact way
    holds the pairs of one tile in memory. In the other cases, all pairs of about `LEFT_ROWS` rows
    are held. ``advance`` gets the number of rows of each block after it is done.
    """
    _refuse_nan(threshold)
    floor = least_score(threshold, snapshot.settings.metric, snapshot.settings.dtype)
    return _find(_Rows.of(snapshot), _Limit(lambda: floor), advance, exact)


def best_pairs(
    snapshot: Snapshot,
    most: int,
    threshold: float = -math.inf,
    advance: Advance = lambda n: None,
    *,
    exact: bool | None = None,
) -> Pairs:
    """Find the ``most`` pairs with the best scores, best first; ties are ordered by rows."""
    _refuse_nan(threshold)
    if most < 1:
        raise QueryError(f"most is {most}; it must be at least 1.")
    live, best = _Rows.of(snapshot), _joined([])
    least = least_score(threshold, snapshot.settings.metric, snapshot.settings.dtype)
    # Largest number of passages of one document. Two documents form at most passages**2 pairs of
    # rows. So the best `most` pairs of documents are among the best most * passages**2 pairs of
    # rows.
    passages = int(np.unique(live.docs, return_counts=True)[1].max(initial=1))

    def floor() -> float:
        return float(best.scores[-1]) if len(best) == most else least

    for pairs in _find(live, _Limit(floor, most * passages**2), advance, exact):
        best = _joined([best, pairs])
        best = best.take(np.lexsort((best.second, best.first, -best.scores))[:most])
    return best


def clusters(pairs_found: Iterable[Pairs]) -> list[list[int]]:
    """Return the connected components of the graph whose edges are the pairs, the largest first.

    A document is named by the row of its first passage; these rows are ascending in each cluster.
    """
    parent: dict[int, int] = {}

    def root(doc: int) -> int:
        # Union-find with path halving: every other document on the path gets its grandparent as
        # its parent.
        while (above := parent.setdefault(doc, doc)) != doc:
            parent[doc] = doc = parent[above]
        return doc

    for pairs in pairs_found:
        for first, second in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True):
            low, high = sorted((root(first), root(second)))
            parent[high] = low
    members: dict[int, list[int]] = {}
    for doc in sorted(parent):
        members.setdefault(root(doc), []).append(doc)
    return sorted(members.values(), key=len, reverse=True)


def later_duplicates(pairs_found: Iterable[Pairs]) -> list[int]:
    """Return each document that is in a pair with an earlier one that is kept, in their order.

    A document is named by the row of its first passage. So a document is left out only if a
    document that stays is close to it; of close documents, the first in the index stays.
    """
    pairs, left_out = _joined(list(pairs_found)), dict[int, None]()
    pairs = pairs.take(np.argsort(pairs.second, kind="stable"))
    for first, second in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True):
        if first not in left_out:
            left_out[second] = None
    return list(left_out)


def at_most_one(scores: NDArray[np.float32], metric: Metric) -> NDArray[np.float32]:
    """Set cosines that are above 1 by a rounding error to 1; other scores stay."""
    return np.minimum(scores, np.float32(1)) if metric == "cosine" else scores


def _refuse_nan(threshold: float) -> None:
    if math.isnan(threshold):
        raise QueryError("The threshold is NaN; pass a score such as 0.9.")


def _find(live: _Rows, limit: _Limit, advance: Advance, exact: bool | None) -> Iterator[Pairs]:
    """Yield the pairs of documents within a limit, for one block of rows after the other."""
    snapshot = live.snapshot
    exact = not any(snapshot.anns) if exact is None else exact
    find = _by_tiles if exact else _by_search
    for start, stop in pairwise(live.borders()):
        block = find(live, start, stop, limit)
        if snapshot.n_rows > snapshot.n_docs:
            block = iter([_closest_passages(list(block))])
        yield from (pairs for pairs in block if len(pairs))
        advance(stop - start)


def _by_tiles(live: _Rows, start: int, stop: int, limit: _Limit) -> Iterator[Pairs]:
    """Compare the rows of a block with each other and with all later rows.

    Products in float32 select the pairs whose score may be within the limit. The scores of these
    pairs in float64 decide.
    """
    left, metric = live.vectors(start, stop), live.snapshot.settings.metric
    for right_start in range(start, len(live.rows), RIGHT_ROWS):
        right_stop = right_start + RIGHT_ROWS
        right = live.vectors(right_start, right_stop)
        slack = _ROUNDING * _largest_norm(left) * _largest_norm(right)
        with np.errstate(invalid="ignore"):  # set by BLAS for unused lanes
            fast = left @ right.T
        fast[live.docs[start:stop, None] >= live.docs[right_start:right_stop]] = -np.inf
        low = limit.floor() - slack
        if limit.most is not None and limit.most < fast.size:
            # Twice the slack, since the score of rank `limit.most` is rounded, and so is each score
            # that is compared with it.
            low = max(low, np.partition(fast, -limit.most, axis=None)[-limit.most] - 2 * slack)
        one, other = np.nonzero(fast >= max(low, _LEAST))
        scores = at_most_one(exact_scores(left, right, one, other, metric), metric)
        pairs = Pairs(live.docs[start + one], live.docs[right_start + other], scores)
        yield pairs.take(np.flatnonzero(scores >= limit.floor()))


def _by_search(live: _Rows, start: int, stop: int, limit: _Limit) -> Iterator[Pairs]:
    """Search the index for the neighbours of each row of a block.

    If all neighbours found for a row reach the lowest score that is kept, it may have further ones,
    and is searched again for eight times as many.
    """
    snapshot, k = live.snapshot, NEIGHBOURS
    max_k = snapshot.n_rows if limit.most is None else min(limit.most + 1, snapshot.n_rows)
    open_rows = np.arange(start, stop)
    while len(open_rows):
        k, floor = min(k, max_k), limit.floor()
        scores, rows = snapshot.search(snapshot.vectors(live.rows[open_rows]), k)
        scores = at_most_one(scores, snapshot.settings.metric)
        repeat = (scores[:, -1] >= floor) & (k < max_k)
        one, other = np.nonzero((scores >= floor) & (rows >= 0) & ~repeat[:, None])
        docs = snapshot.doc_of(rows[one, other])
        pairs = Pairs(live.docs[open_rows[one]], docs, scores[one, other])
        yield pairs.take(np.flatnonzero(pairs.first < pairs.second))
        open_rows, k = open_rows[repeat], k * 8


def _closest_passages(parts: list[Pairs]) -> Pairs:
    """Keep the best pair of passages of each pair of documents."""
    pairs = _joined(parts)
    pairs = pairs.take(np.lexsort((-pairs.scores, pairs.second, pairs.first)))
    new = np.ones(len(pairs), bool)
    new[1:] = (pairs.first[1:] != pairs.first[:-1]) | (pairs.second[1:] != pairs.second[:-1])
    return pairs.take(np.flatnonzero(new))


def _joined(parts: list[Pairs]) -> Pairs:
    none = Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
    columns = zip(*((p.first, p.second, p.scores) for p in [none, *parts]), strict=True)
    return Pairs(*(np.concatenate(column) for column in columns))


def _largest_norm(vectors: NDArray[np.float32]) -> float:
    """Return the largest norm in float32: faster than `norms.largest_norm`, exact enough here."""
    return float(np.sqrt(np.einsum("nd,nd->n", vectors, vectors).max()))
