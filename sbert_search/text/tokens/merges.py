"""Merge pieces of words into longer pieces, by the gain in likelihood of each pair.

A piece is an entry of the vocabulary: a character, or several characters that were merged.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.arrays import Ints
from sbert_search.text.tokens.vocabulary import CONTINUATION

Floats = NDArray[np.float64]

MIN_COUNT = 2
# Gains with a smaller relative difference count as equal. This threshold is far above the rounding
# errors of a gain, and far below the change of a gain if a count changes by 1.
_TIE = 1e-9


def _pair_keys(left: NDArray[np.int32], right: NDArray[np.int32]) -> Ints:
    """Combine the ids of two pieces into one integer key."""
    return (left.astype(np.int64) << 32) | right


class _PairTable:
    """All pairs of adjacent pieces in a corpus, with the count and the gain of each pair.

    A slot is an index into the arrays of this table, which another pair may reuse after the count
    of its pair has become 0.

    The gain that `grow_vocabulary` defines equals ``f(ab) ln N + base``. This table stores
    ``base``, which a merge changes only for pairs with one of the two merged pieces or the
    resulting piece. A merge also decreases N, so `best` computes the other term for all pairs at
    once.
    """

    def __init__(self) -> None:
        self.left = np.zeros(1024, np.int32)
        self.right = np.zeros(1024, np.int32)
        self._count = np.zeros(1024)  # integers, exact below 2**53
        self._base = np.full(1024, -np.inf)
        self._gain = np.empty(1024)
        self._used = 0
        self._free: list[int] = []
        self._slots: dict[int, int] = {}
        # For each piece, the slots of the pairs that contain the piece. An array may also hold
        # slots that were reused for pairs without the piece.
        self._slots_of: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))

    def change(self, keys: Ints, amounts: Floats) -> None:
        """Add amounts to the counts of distinct pairs; a pair with count 0 frees its slot.

        Before the next `best`, call `rescore` with all pieces whose counts changed: after a merge,
        the two merged pieces and the resulting piece.
        """
        known = list(map(self._slots.get, keys.tolist()))
        for index, slot in enumerate(known):
            if slot is None:
                known[index] = self._new_slot(int(keys[index]))
        slots = np.array(known, np.int64)
        self._count[slots] += amounts
        unused = self._count[slots] == 0
        for key, slot in zip(keys[unused].tolist(), slots[unused].tolist(), strict=True):
            del self._slots[key]
            self._free.append(slot)

    def rescore(self, pieces: set[int], frequency: Floats) -> None:
        """Recompute the gains of all pairs that contain any of ``pieces``."""
        slots = np.concatenate([self._slots_with(piece) for piece in pieces])
        count = self._count[slots]
        product = frequency[self.left[slots]] * frequency[self.right[slots]]
        base = count * np.log(np.maximum(count, 1) / np.maximum(product, 1))
        self._base[slots] = np.where(count < MIN_COUNT, -np.inf, base)

    def best(self, total: float) -> NDArray[np.intp]:
        """Return the slots of the pairs with the largest gain; none if no gain is positive."""
        used = slice(self._used)
        gain = np.multiply(self._count[used], np.log(max(total, 1.0)), out=self._gain[used])
        gain += self._base[used]
        largest = gain.max(initial=0.0)
        if largest <= 0:
            return np.empty(0, np.intp)
        return np.flatnonzero(gain >= largest * (1 - _TIE))

    def _slots_with(self, piece: int) -> NDArray[np.int32]:
        """Return the slots of all pairs with a piece, and perhaps some slots of other pairs."""
        slots = np.frombuffer(self._slots_of[piece], np.int32)
        held = (self.left[slots] == piece) | (self.right[slots] == piece)
        if 2 * np.count_nonzero(held) < len(slots):
            slots = np.unique(slots[held])
            self._slots_of[piece] = array("i", slots.tobytes())
        return slots

    def _new_slot(self, key: int) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._used
            self._used += 1
            if slot == len(self._count):
                self._grow()
        left, right = key >> 32, key & 0xFFFFFFFF
        self.left[slot], self.right[slot] = left, right
        self._slots[key] = slot
        self._slots_of[left].append(slot)
        self._slots_of[right].append(slot)
        return slot

    def _grow(self) -> None:
        size = 2 * len(self._count)
        for name in ("left", "right", "_count", "_gain"):
            setattr(self, name, np.resize(getattr(self, name), size))
        self._count[size // 2 :] = 0
        self._base = np.concatenate([self._base, np.full(size // 2, -np.inf)])


Positions = NDArray[np.int32]


def _join_pieces(left: str, right: str) -> str:
    """Return two adjacent pieces as one: ``un`` and ``##able`` give ``unable``."""
    return left + right.removeprefix(CONTINUATION)


class Segmentation:
    """All distinct words, concatenated, each as a linked list of pieces.

    A position is an index into the arrays of this class. A merge stores the new piece at the
    position of the left piece and empties the position of the right piece. -1 means that a position
    is empty, or that there is no next or previous piece in the word. ``pieces``, (positions,), has
    the ids of all words, word by word; ``lengths`` and ``counts``, (words,), the pieces and
    occurrences of each word.
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
        """Merge all occurrences of a pair, left to right; ``merged`` may be the next unused id.

        Returns the number of merges in the corpus, the keys of all pairs whose counts changed, and
        the changes of these counts.
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

        Of overlapping occurrences, as of (a, a) in ``aaa``, the first, the third and so on are
        returned.
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
        """Return key and weight of the pairs whose left pieces are at ``left``, each position once.

        The position -1 and the position of the last piece of a word give no pair.
        """
        left = np.unique(left[left >= 0])
        left = left[self._next[left] >= 0]
        weights: Floats = self._weight[left]
        return _pair_keys(self._piece[left], self._piece[self._next[left]]), weights


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

    Of pairs with equal gains, the first in alphabetical order is merged. Merging stops early if no
    pair that occurs at least twice increases the likelihood. ``segmentation`` is modified. Returns
    the new pieces, in the order of their merges.

    Source: Schuster & Nakajima 2012, Japanese and Korean voice search, section 3. The gain of
    merging a and b is f(ab) ln(f(ab) N / (f(a) f(b))), where f counts occurrences and N is the
    number of pieces in the corpus.
    """
    texts, id_of = list(pieces), {text: piece_id for piece_id, text in enumerate(pieces)}
    frequency = segmentation.frequencies()
    total = float(frequency.sum())
    frequency = np.concatenate([frequency, np.zeros(n_new)])
    table = _PairTable()
    table.change(*segmentation.pairs())
    table.rescore(set(range(len(texts))), frequency)
    while len(texts) < len(pieces) + n_new and len(best := table.best(total)):
        pairs = zip(table.left[best].tolist(), table.right[best].tolist(), strict=True)
        left, right = min(pairs, key=lambda pair: (texts[pair[0]], texts[pair[1]]))
        text = _join_pieces(texts[left], texts[right])
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
