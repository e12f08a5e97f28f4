"""Merge pieces (vocabulary entries) into longer pieces until a vocabulary is large enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.arrays import Ints
from sbert_search.tokens.vocabulary import CONTINUATION
from sbert_search.tokens.wordpiece.merge_candidates import Floats, PairTable, pair_keys

Positions = NDArray[np.int32]


def join_pieces(left: str, right: str) -> str:
    """Return two adjacent pieces as one: ``un`` and ``##able`` give ``unable``."""
    return left + right.removeprefix(CONTINUATION)


class Segmentation:
    """All distinct words, concatenated, each as a linked list of pieces.

    A position is an index into the arrays of this class. A merge stores the new piece at the
    position of the left piece and empties the position of the right piece. -1 means that a position
    is empty, or that there is no next or previous piece in the word.

    Args:
        pieces: Piece ids of all words, word by word, int (positions,).
        lengths: Number of pieces of each word, int (words,).
        counts: Number of occurrences of each word, int (words,).
        n_pieces: Number of distinct pieces.
    """

    def __init__(
        self, pieces: NDArray[np.integer], lengths: Ints, counts: Ints, n_pieces: int
    ) -> None:
        self._piece: Positions = pieces.astype(np.int32)
        self._weight: Floats = np.repeat(counts.astype(np.float64), lengths)
        ends = np.cumsum(lengths)
        self._next: Positions = np.arange(1, len(pieces) + 1, dtype=np.int32)
        self._next[ends - 1] = -1
        self._previous: Positions = np.arange(-1, len(pieces) - 1, dtype=np.int32)
        self._previous[ends - lengths] = -1
        order = np.argsort(self._piece, kind="stable").astype(np.int32)
        borders = np.searchsorted(self._piece[order], np.arange(1, n_pieces))
        self._positions: list[Positions] = np.split(order, borders)

    def frequencies(self) -> Floats:
        """Return the number of occurrences of every piece in the corpus, float (n_pieces,)."""
        return _sums(self._piece, self._weight, len(self._positions))

    def pairs(self) -> tuple[Ints, Floats]:
        """Return the keys of all distinct pairs of adjacent pieces, and the count of each pair."""
        return _summed(*self._edges(np.arange(len(self._piece), dtype=np.int32)))

    def merge(self, left: int, right: int, merged: int) -> tuple[float, Ints, Floats]:
        """Merge all occurrences of a pair, from left to right.

        Args:
            left: Id of the left piece of the pair.
            right: Id of the right piece of the pair.
            merged: Id of the merged piece: the next unused id, or the id of an existing piece.

        Returns:
            The number of merges in the corpus, the keys of all pairs whose counts changed, and the
            changes of these counts.
        """
        first = self._find(left, right)
        second = self._next[first]
        third = self._next[second]
        before = self._edges(np.concatenate([self._previous[first], first, second]))
        self._piece[first] = merged
        self._piece[second] = -1
        self._next[first] = third
        inside = third >= 0
        self._previous[third[inside]] = first[inside]
        after = self._edges(np.concatenate([self._previous[first], first]))
        if merged == len(self._positions):
            self._positions.append(first)
        else:
            self._positions[merged] = np.concatenate([self._positions[merged], first])
        keys, amounts = _summed(
            np.concatenate([before[0], after[0]]), np.concatenate([-before[1], after[1]])
        )
        changed = amounts != 0
        return float(self._weight[first].sum()), keys[changed], amounts[changed]

    def _find(self, left: int, right: int) -> Positions:
        """Return the positions of the left pieces of a pair.

        Occurrences can overlap: the pair (a, a) occurs twice in ``aaa``. Of overlapping
        occurrences, the first, the third and so on are returned.
        """
        first: Positions
        if len(self._positions[left]) <= len(self._positions[right]):
            first = self._positions_of(left)
            follower = self._next[first]
            first = first[(follower >= 0) & (self._piece[follower] == right)]
        else:
            first = self._previous[self._positions_of(right)]
            first = first[(first >= 0) & (self._piece[first] == left)]
        if left != right:
            return first
        first = np.sort(first)
        step = np.arange(len(first))
        starts = self._previous[first] != np.concatenate([[-1], first[:-1]])
        starts |= self._previous[first] < 0
        rank_in_run = step - np.maximum.accumulate(np.where(starts, step, 0))
        every_second: Positions = first[rank_in_run % 2 == 0]
        return every_second

    def _positions_of(self, piece: int) -> Positions:
        positions = self._positions[piece]
        self._positions[piece] = positions[self._piece[positions] == piece]
        return self._positions[piece]

    def _edges(self, left: Positions) -> tuple[Ints, Floats]:
        """Return key and weight of the pairs whose left pieces are at the positions ``left``.

        The weight is the number of occurrences of the word. A position that is given twice counts
        once. The position -1 and the position of the last piece of a word give no pair.
        """
        left = np.unique(left[left >= 0])
        left = left[self._next[left] >= 0]
        weights: Floats = self._weight[left]
        return pair_keys(self._piece[left], self._piece[self._next[left]]), weights


def _summed(keys: Ints, amounts: Floats) -> tuple[Ints, Floats]:
    unique, inverse = np.unique(keys, return_inverse=True)
    return unique, _sums(inverse, amounts, len(unique))


def _sums(groups: NDArray[np.integer], amounts: Floats, n_groups: int) -> Floats:
    return np.bincount(groups, weights=amounts, minlength=n_groups).astype(np.float64, copy=False)


def grow_vocabulary(
    segmentation: Segmentation,
    pieces: Sequence[str],
    n_new: int,
    *,
    advance: Callable[[int], None] = lambda n: None,
) -> list[str]:
    """Merge the pair with the largest gain in unigram log-likelihood, until ``n_new`` are added.

    Gains with a relative difference below 1e-9 count as equal. If several pairs have the largest
    gain, the first of them in alphabetical order is merged. Merging stops early if no pair that
    occurs at least twice increases the likelihood.

    Args:
        segmentation: The words, split into pieces; this object is modified.
        pieces: Texts of the initial pieces of ``segmentation``, in the order of ids.
        n_new: Number of pieces to add.
        advance: Called with 1 for each new piece.

    Returns:
        The new pieces, in the order of their merges.

    Source: Schuster & Nakajima 2012, Japanese and Korean voice search, section 3. The gain of
    merging a and b is f(ab) ln(f(ab) N / (f(a) f(b))), where f counts occurrences and N is the
    number of pieces in the corpus.
    """
    texts, id_of = list(pieces), {text: piece_id for piece_id, text in enumerate(pieces)}
    frequency = segmentation.frequencies()
    total = float(frequency.sum())
    frequency = np.concatenate([frequency, np.zeros(n_new)])
    table = PairTable()
    table.change(*segmentation.pairs())
    table.rescore(set(range(len(texts))), frequency)
    while len(texts) < len(pieces) + n_new and len(best := table.best(total)):
        pairs = zip(table.left[best].tolist(), table.right[best].tolist(), strict=True)
        left, right = min(pairs, key=lambda pair: (texts[pair[0]], texts[pair[1]]))
        text = join_pieces(texts[left], texts[right])
        merged = id_of.setdefault(text, len(texts))
        if merged == len(texts):
            texts.append(text)
            advance(1)
        count, keys, amounts = segmentation.merge(left, right, merged)
        frequency[[left, right]] -= count if left != right else 2 * count
        frequency[merged] += count
        total -= count
        table.change(keys, amounts)
        table.rescore({left, right, merged}, frequency)
    return texts[len(pieces) :]
