"""Count adjacent pairs of pieces, and compute the gain in likelihood of merging each pair.

A piece is an entry of the vocabulary: a character, or several characters that were merged.
"""

from __future__ import annotations

from array import array
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.arrays import Ints

Floats = NDArray[np.float64]

MIN_COUNT = 2
# Gains with a smaller relative difference count as equal. This threshold is far above the rounding
# errors of a gain, and far below the change of a gain if a count changes by 1.
TIE = 1e-9


def pair_keys(left: NDArray[np.int32], right: NDArray[np.int32]) -> Ints:
    """Combine the ids of two pieces into one integer key."""
    return (left.astype(np.int64) << 32) | right


class PairTable:
    """All pairs of adjacent pieces in a corpus, with the count and the gain of each pair.

    A slot is an index into the arrays of this table. Each pair has one slot, which another pair may
    reuse after the count of the first pair has become 0.

    With counts f and a corpus of N pieces, the gain of merging a and b is
    ``f(ab) ln(f(ab) N / (f(a) f(b)))``, which equals ``f(ab) ln N + base``. This table stores
    ``base``. A merge changes ``base`` only for pairs that contain one of the two merged pieces or
    the resulting piece. A merge also decreases N, which changes the term ``f(ab) ln N`` of all
    pairs, so `best` computes this term for all pairs at once.
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
        these are the two merged pieces and the resulting piece. Until then, the gains are stale.
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
        """Recompute the gains of all pairs that contain any of ``pieces``.

        Args:
            pieces: Ids of pieces.
            frequency: Count of every piece in the corpus, by id.
        """
        slots = np.concatenate([self._slots_with(piece) for piece in pieces])
        count = self._count[slots]
        product = frequency[self.left[slots]] * frequency[self.right[slots]]
        base = count * np.log(np.maximum(count, 1) / np.maximum(product, 1))
        self._base[slots] = np.where(count < MIN_COUNT, -np.inf, base)

    def best(self, total: float) -> NDArray[np.intp]:
        """Return the slots of the pairs with the largest gain; empty if no gain is positive.

        Args:
            total: N, the number of pieces in the corpus.
        """
        used = slice(self._used)
        gain = np.multiply(self._count[used], np.log(max(total, 1.0)), out=self._gain[used])
        gain += self._base[used]
        largest = gain.max(initial=0.0)
        if largest <= 0:
            return np.empty(0, np.intp)
        return np.flatnonzero(gain >= largest * (1 - TIE))

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
