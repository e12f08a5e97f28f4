"""Adjacent pairs of pieces, with their counts and the likelihood gain of merging them."""

from __future__ import annotations

from array import array
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from sbert_search.runtime.arrays import Ints

Floats = NDArray[np.float64]

MIN_COUNT = 2
TIE = 1e-9  # relative difference of equal gains: far above rounding errors, far below one count


def pair_keys(left: NDArray[np.int32], right: NDArray[np.int32]) -> Ints:
    """Combine the ids of two pieces into one integer key."""
    return (left.astype(np.int64) << 32) | right


class PairTable:
    """Every pair that occurs, one slot each, with its count and the part of its gain without N.

    With counts f and N pieces in the corpus, the gain of merging a and b is
    ``f(ab) ln(f(ab) N / (f(a) f(b)))``. Written as ``f(ab) ln N + base``, a merge changes ``base``
    only for pairs that contain a merged piece. N decreases with each merge; `best` adds its part in
    one pass over two arrays.
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
        # Piece to slots of pairs that contain it, or did before the slot was reused.
        self._holding: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))

    def change(self, keys: Ints, amounts: Floats) -> None:
        """Add amounts to the counts of distinct pairs; a pair with count 0 frees its slot.

        The gains are stale until `rescore` is called with the merged pieces.
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
        """Recompute the gains of the pairs that contain one of some pieces."""
        slots = np.concatenate([self._slots_holding(piece) for piece in pieces])
        count = self._count[slots]
        product = frequency[self.left[slots]] * frequency[self.right[slots]]
        base = count * np.log(np.maximum(count, 1) / np.maximum(product, 1))
        self._base[slots] = np.where(count < MIN_COUNT, -np.inf, base)

    def best(self, total: float) -> NDArray[np.intp]:
        """Find the slots of the pairs with the largest gain; empty if no gain is positive.

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

    def _slots_holding(self, piece: int) -> NDArray[np.int32]:
        """Slots of a piece's pairs; may include slots that other pairs reuse."""
        slots = np.frombuffer(self._holding[piece], np.int32)
        held = (self.left[slots] == piece) | (self.right[slots] == piece)
        if 2 * np.count_nonzero(held) < len(slots):
            slots = np.unique(slots[held])
            self._holding[piece] = array("i", slots.tobytes())
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
        self._holding[left].append(slot)
        self._holding[right].append(slot)
        return slot

    def _grow(self) -> None:
        size = 2 * len(self._count)
        for name in ("left", "right", "_count", "_gain"):
            setattr(self, name, np.resize(getattr(self, name), size))
        self._count[size // 2 :] = 0
        self._base = np.concatenate([self._base, np.full(size // 2, -np.inf)])
