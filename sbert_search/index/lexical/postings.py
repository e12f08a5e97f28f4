"""Postings: for each term, the documents of a segment that contain it, with counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.lexical.analyzer import STOP_WORD, term_reader
from sbert_search.index.lexical_settings import LexicalSettings

MERGE_POSTINGS = 1 << 21  # approximate number of postings that a merge holds at a time
NO_TERM = np.uint64(2**64 - 1)  # end mark after the last hash

_DEAD = np.uint32(2**32 - 1)  # new number of a document that is dropped

Live = NDArray[np.bool_] | None
"""Which documents or rows of a segment are neither deleted nor replaced, bool (n,); None: all."""


@dataclass(frozen=True, slots=True)
class Postings:
    """The postings of some documents, which are numbered from 0.

    Attributes:
        terms: uint64 (2, n_terms + 1): hash of each term, ascending, and the index in ``pairs`` of
            its first posting; the last column is `NO_TERM` and the number of postings.
        pairs: uint32 (n_postings, 2): document and count, sorted by term and then by document. Each
            occurrence in a title counts ``LexicalSettings.title_weight`` times.
        lengths: uint32 (n_docs,): sum of the counts of each document.
    """

    terms: NDArray[np.uint64]
    pairs: NDArray[np.uint32]
    lengths: NDArray[np.uint32]

    @classmethod
    def of_blank(cls, n_docs: int) -> Postings:
        """Make the postings of documents that contain no term."""
        pairs = np.empty((0, 2), np.uint32)
        return cls(table_of_terms([]), pairs, np.zeros(n_docs, np.uint32))

    def of(self, terms: Iterable[int]) -> list[NDArray[np.uint32]]:
        """Return the pairs of each term, uint32 (n, 2); n is 0 if no document contains it."""
        hashes, starts = self.terms
        wanted = np.array(list(terms), np.uint64)
        at = hashes[:-1].searchsorted(wanted)
        after = np.minimum(at + 1, len(hashes) - 1)
        ends = starts[np.where(hashes[at] == wanted, after, at)]
        bounds = zip(starts[at].tolist(), ends.tolist(), strict=True)
        return [self.pairs[start:end] for start, end in bounds]

    @property
    def is_sound(self) -> bool:
        """Whether terms and starts ascend, starts cover the pairs, and all documents exist."""
        hashes, starts = self.terms
        ascending = (hashes[:-2] < hashes[1:-1]).all() and (starts[:-1] <= starts[1:]).all()
        covers_pairs = (int(starts[0]), int(starts[-1])) == (0, len(self.pairs))
        known = int(self.pairs[:, 0].max(initial=0)) < len(self.lengths)
        return bool(ascending and covers_pairs and known)

    def between(self, low: int, high: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return hash (n,) and pair (n, 2) of each posting with ``low`` <= hash <= ``high``."""
        hashes, starts = self.terms
        first = int(np.searchsorted(hashes[:-1], np.uint64(low), "left"))
        last = int(np.searchsorted(hashes[:-1], np.uint64(high), "right"))
        counts = np.diff(starts[first : last + 1]).astype(np.int64)
        pairs = self.pairs[int(starts[first]) : int(starts[last])]
        return np.repeat(hashes[first:last], counts), pairs


@dataclass(frozen=True, slots=True)
class Group:
    """The postings of some terms, before they are joined with the postings of other terms.

    Attributes:
        hashes: uint64 (n_terms,), ascending.
        starts: Index in ``pairs`` of the first posting of each term, uint64 (n_terms,).
        pairs: uint32 (n_postings, 2): document and count, sorted by term and then by document.
    """

    hashes: NDArray[np.uint64]
    starts: NDArray[np.uint64]
    pairs: NDArray[np.uint32]


def count_terms(
    texts: Iterable[tuple[str, str]],
    settings: LexicalSettings,
    words: Counter[str] | None = None,
) -> Postings:
    """Count the terms of documents in memory.

    Args:
        texts: Title and text of each document.
        settings: How texts become terms.
        words: A counter, to which the words of the documents are added; None: do not count words.
    """
    reader = term_reader(settings)
    fields = [reader.terms(field, words) for document in texts for field in document]
    n_docs = len(fields) // 2
    sizes = [len(hashes) for hashes in fields]
    weights = np.tile(np.array([settings.title_weight, 1], np.uint32), n_docs)
    docs = np.repeat(np.arange(n_docs, dtype=np.uint32), 2)
    hashes = np.concatenate([np.empty(0, np.uint64), *fields])
    pairs = np.repeat(np.stack([docs, weights], axis=1), sizes, axis=0)
    counted = (hashes != STOP_WORD) & (pairs[:, 1] > 0)
    lengths = np.bincount(pairs[counted, 0], weights=pairs[counted, 1], minlength=n_docs)
    group = _grouped(hashes[counted], pairs[counted])
    return Postings(table_of_terms([group]), group.pairs, lengths.astype(np.uint32))


def table_of_terms(groups: Iterable[Group]) -> NDArray[np.uint64]:
    """Join the terms of groups into an array like `Postings.terms`; keep no pairs in memory."""
    parts, n_pairs = [], 0
    for group in groups:
        parts.append(np.stack([group.hashes, group.starts + np.uint64(n_pairs)]))
        n_pairs += len(group.pairs)
    return np.concatenate([*parts, np.array([[NO_TERM], [n_pairs]], np.uint64)], axis=1)


def merge(sources: Sequence[tuple[Postings, Live]]) -> Iterator[Group]:
    """Merge the postings of consecutive sets of documents, without dead documents.

    Each step merges the terms of one range of hashes, about `MERGE_POSTINGS` postings, so memory
    hardly grows with the number of postings. The live documents are numbered again from 0.

    Args:
        sources: Postings, and which of their documents are live, bool (n_docs,); None: all.

    Yields:
        Groups in ascending order of hashes.
    """
    total = sum(len(postings.pairs) for postings, _ in sources)
    bits = (total // MERGE_POSTINGS).bit_length()
    width = 1 << (64 - bits)
    new_docs = _new_documents(sources)
    for low in range(0, 1 << 64, width):
        parts = [
            _renumbered(*postings.between(low, low + width - 1), new)
            for (postings, _), new in zip(sources, new_docs, strict=True)
        ]
        hashes, pairs = (np.concatenate(part) for part in zip(*parts, strict=True))
        yield _grouped(hashes, pairs)


def merged(sources: Sequence[tuple[Postings, Live]]) -> Postings:
    """Merge postings in memory; arguments as for `merge`."""
    groups = list(merge(sources))
    pairs = np.concatenate([group.pairs for group in groups])
    return Postings(table_of_terms(groups), pairs, live_lengths(sources))


def live_lengths(sources: Sequence[tuple[Postings, Live]]) -> NDArray[np.uint32]:
    """Concatenate the lengths of the live documents of all sources."""
    lengths = [p.lengths if live is None else p.lengths[live] for p, live in sources]
    return np.concatenate(lengths)


def _grouped(hashes: NDArray[np.uint64], pairs: NDArray[np.uint32]) -> Group:
    """Sort postings by term and add up the counts of equal terms and documents.

    The documents of each term must ascend. The sort is stable, so they still ascend.
    """
    order = np.argsort(hashes, kind="stable")
    hashes, pairs = hashes[order], pairs[order]
    is_new = np.ones(len(hashes), bool)
    is_new[1:] = hashes[1:] != hashes[:-1]
    begins = np.flatnonzero(is_new)
    is_new[1:] |= pairs[1:, 0] != pairs[:-1, 0]
    firsts = np.flatnonzero(is_new)
    if len(firsts) < len(pairs):
        counts = np.add.reduceat(pairs[:, 1], firsts, dtype=np.uint32)
        pairs = np.stack([pairs[firsts, 0], counts], axis=1)
    starts = np.searchsorted(firsts, begins).astype(np.uint64)
    return Group(hashes[begins], starts, pairs)


def _new_documents(sources: Sequence[tuple[Postings, Live]]) -> list[NDArray[np.uint32]]:
    """Number the live documents of all sources consecutively; `_DEAD` for dead ones."""
    numbers, first = [], 0
    for postings, live in sources:
        marks = np.ones(len(postings.lengths), bool) if live is None else live
        new = np.cumsum(marks, dtype=np.uint32) - np.uint32(1) + np.uint32(first)
        new[~marks] = _DEAD
        first += int(marks.sum())
        numbers.append(new)
    return numbers


def _renumbered(
    hashes: NDArray[np.uint64], pairs: NDArray[np.uint32], new: NDArray[np.uint32]
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    docs = new[pairs[:, 0]]
    live = docs != _DEAD
    return hashes[live], np.stack([docs[live], pairs[live, 1]], axis=1)
