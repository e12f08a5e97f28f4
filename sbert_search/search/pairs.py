"""Paraphrase mining: all pairs of documents whose vectors are close, and clusters of duplicates.

Exact: every row against every later one, in tiles. A large index that is searched approximately
looks each document up in itself instead, and finds of its pairs what a search of it would find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import QueryError
from sbert_search.index.dense.exact import exact_scores
from sbert_search.index.snapshot import Snapshot
from sbert_search.runtime.progress import Advance

LEFT_ROWS, RIGHT_ROWS = 2048, 4096  # of one tile, whose scores take 32 MiB
NEIGHBOURS = 64  # fetched first of each row where the index is approximate

_LEAST = float(np.finfo(np.float32).min)  # of a score; what cannot be a pair has less
_ROUNDING = 1e-5  # of a float32 product, relative to the lengths of its vectors


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of documents, each named by the row of its first passage.

    Attributes:
        first: The earlier document, int64 (n,).
        second: The later one, int64 (n,).
        scores: float32 (n,); of documents with several passages, that of their closest two.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, places: NDArray[np.int64]) -> Pairs:
        """Keep some of them, in the order given."""
        return Pairs(self.first[places], self.second[places], self.scores[places])


@dataclass(frozen=True, slots=True)
class _Rows:
    """The live rows of an index in their order, (n,) each."""

    snapshot: Snapshot
    rows: NDArray[np.int64]
    docs: NDArray[np.int64]

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Rows:
        if snapshot.settings.metric == "euclidean":
            raise QueryError(f"{snapshot.path} compares by distance; pairs need cosine or dot.")
        parts = [np.empty(0, np.int64)]
        for place, segment in enumerate(snapshot.segments):
            live = snapshot.live(place)
            parts.append(segment.rows if live is None else segment.rows[live])
        rows = np.concatenate(parts)
        return cls(snapshot, rows, snapshot.doc_of(rows))

    def vectors(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.snapshot.vectors(self.rows[start:stop])

    def cuts(self) -> list[int]:
        """Cut into blocks of whole documents, of about `LEFT_ROWS` rows."""
        places = np.arange(0, len(self.docs), LEFT_ROWS)
        begins = np.searchsorted(self.docs, self.docs[places])
        return [*np.unique(begins).tolist(), len(self.docs)]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What counts while pairs are looked for.

    Attributes:
        floor: Gives the least score that counts by now.
        most: Pairs of rows of one tile beyond which the worst do not count; None: all do.
    """

    floor: Callable[[], float]
    most: int | None = None


def close_pairs(
    snapshot: Snapshot,
    threshold: float,
    advance: Advance = lambda n: None,
    *,
    exact: bool | None = None,
) -> Iterator[Pairs]:
    """Find every pair of documents with a score of at least a threshold, each pair once.

    Args:
        snapshot: The documents; its metric, cosine or dot, gives the scores.
        threshold: What counts as close.
        advance: Told how many rows are done.
        exact: Compare all with all; None: where the index has no FAISS file.

    Yields:
        Some pairs at a time; what is in memory does not grow with the index.

    Raises:
        QueryError: The index compares by distance, or the threshold is no number.
    """
    _refuse_nan(threshold)
    return _look(_Rows.of(snapshot), _Wanted(lambda: threshold), advance, exact)


def best_pairs(
    snapshot: Snapshot,
    most: int,
    threshold: float = -math.inf,
    advance: Advance = lambda n: None,
    *,
    exact: bool | None = None,
) -> Pairs:
    """Find the pairs that score best, best first; equal ones in the order of their rows.

    Args:
        snapshot: As for `close_pairs`, and so are the arguments below.
        most: Pairs wanted.
        threshold: What they must have at least.
        advance: Told how many rows are done.
        exact: Compare all with all.

    Raises:
        QueryError: As for `close_pairs`.
    """
    _refuse_nan(threshold)
    every, best = _Rows.of(snapshot), _joined([])
    passages = int(np.unique(every.docs, return_counts=True)[1].max(initial=1))

    def floor() -> float:
        return float(best.scores[-1]) if len(best) == most else threshold

    for pairs in _look(every, _Wanted(floor, most * passages**2), advance, exact):
        best = _joined([best, pairs])
        best = best.take(np.lexsort((best.second, best.first, -best.scores))[:most])
    return best


def clusters(found: Iterable[Pairs]) -> list[list[int]]:
    """Join documents that are connected by pairs.

    Returns:
        Rows of first passages, rising in each cluster; the largest cluster first.
    """
    parent: dict[int, int] = {}

    def root(doc: int) -> int:
        while (above := parent.setdefault(doc, doc)) != doc:
            parent[doc] = doc = parent[above]
        return doc

    for pairs in found:
        for first, second in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True):
            low, high = sorted((root(first), root(second)))
            parent[high] = low
    members: dict[int, list[int]] = {}
    for doc in sorted(parent):
        members.setdefault(root(doc), []).append(doc)
    return sorted(members.values(), key=len, reverse=True)


def _refuse_nan(threshold: float) -> None:
    if math.isnan(threshold):
        raise QueryError("The threshold is nan; nothing is as close as that.")


def _look(every: _Rows, wanted: _Wanted, advance: Advance, exact: bool | None) -> Iterator[Pairs]:
    snapshot = every.snapshot
    exact = not any(snapshot.anns) if exact is None else exact
    finder = _by_tiles if exact else _by_search
    for start, stop in pairwise(every.cuts()):
        found = finder(every, start, stop, wanted)
        if snapshot.n_rows > snapshot.n_docs:
            found = iter([_closest_passages(list(found))])
        yield from (pairs for pairs in found if len(pairs))
        advance(stop - start)


def _by_tiles(every: _Rows, start: int, stop: int, wanted: _Wanted) -> Iterator[Pairs]:
    """Compare the rows of a block with all that are not before it."""
    left, metric = every.vectors(start, stop), every.snapshot.settings.metric
    for at in range(start, len(every.rows), RIGHT_ROWS):
        right = every.vectors(at, at + RIGHT_ROWS)
        slack = _ROUNDING * _longest(left) * _longest(right)
        fast = left @ right.T
        fast[every.docs[start:stop, None] >= every.docs[at : at + RIGHT_ROWS]] = -np.inf
        low = wanted.floor() - slack
        if wanted.most is not None and wanted.most < fast.size:
            low = max(low, np.partition(fast, -wanted.most, axis=None)[-wanted.most] - 2 * slack)
        one, other = np.nonzero(fast >= max(low, _LEAST))
        scores = exact_scores(left, right, one, other, metric)
        pairs = Pairs(every.docs[start + one], every.docs[at + other], scores)
        yield pairs.take(np.flatnonzero(scores >= wanted.floor()))


def _by_search(every: _Rows, start: int, stop: int, wanted: _Wanted) -> Iterator[Pairs]:
    """Look each row of a block up in the index, deeper while all that it finds counts."""
    snapshot, k = every.snapshot, NEIGHBOURS
    deepest = snapshot.n_rows if wanted.most is None else min(wanted.most + 1, snapshot.n_rows)
    open_rows = np.arange(start, stop)
    while len(open_rows):
        k, floor = min(k, deepest), wanted.floor()
        scores, rows = snapshot.search(snapshot.vectors(every.rows[open_rows]), k)
        deeper = (scores[:, -1] >= floor) & (k < deepest)
        one, other = np.nonzero((scores >= floor) & (rows >= 0) & ~deeper[:, None])
        docs = snapshot.doc_of(rows[one, other])
        pairs = Pairs(every.docs[open_rows[one]], docs, scores[one, other])
        yield pairs.take(np.flatnonzero(pairs.first < pairs.second))
        open_rows, k = open_rows[deeper], k * 8


def _closest_passages(found: list[Pairs]) -> Pairs:
    """Keep of each pair of documents the best pair of passages."""
    pairs = _joined(found)
    pairs = pairs.take(np.lexsort((-pairs.scores, pairs.second, pairs.first)))
    new = np.ones(len(pairs), bool)
    new[1:] = (pairs.first[1:] != pairs.first[:-1]) | (pairs.second[1:] != pairs.second[:-1])
    return pairs.take(np.flatnonzero(new))


def _joined(parts: list[Pairs]) -> Pairs:
    none = Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
    columns = zip(*((p.first, p.second, p.scores) for p in [none, *parts]), strict=True)
    return Pairs(*(np.concatenate(column) for column in columns))


def _longest(vectors: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.einsum("nd,nd->n", vectors, vectors).max()))
