"""Adjacent pairs of pieces: how often each is seen, and what merging it would gain."""

from __future__ import annotations

from array import array
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from sbert_search.runtime.arrays import Ints

Floats = NDArray[np.float64]

MIN_COUNT = 2
TIE = 1e-9  # gains nearer than this part are equal: far above rounding, far below a count


def pair_keys(left: NDArray[np.int32], right: NDArray[np.int32]) -> Ints:
    """Join two pieces to one number."""
    return (left.astype(np.int64) << 32) | right


class PairTable:
    """Every pair that is seen, one slot each, with its count and the steady part of its gain.

    The gain of merging a and b is, with f for counts and N for all pieces,
    ``f(ab) ln(f(ab) N / (f(a) f(b)))``. Written as ``f(ab) ln N + base``, a merge changes ``base``
    only of the pairs that hold a merged piece; their gain may rise. N, which falls with each merge,
    enters when the best is sought, in one pass over two arrays.
    """

    def __init__(self) -> None:
        self.left = np.zeros(1024, np.int32)
        self.right = np.zeros(1024, np.int32)
        self._count = np.zeros(1024)  # whole numbers, exact below 2**53
        self._base = np.full(1024, -np.inf)
        self._gain = np.empty(1024)
        self._used = 0
        self._free: list[int] = []
        self._slots: dict[int, int] = {}
        # By piece: slots of pairs that hold it, or once did.
        self._holding: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))

    def change(self, keys: Ints, amounts: Floats) -> None:
        """Add to the counts of some pairs, each named once; a pair that is gone gives up its slot.

        The gains are stale until `rescore` has seen the pieces that were merged.
        """
        known = list(map(self._slots.get, keys.tolist()))
        for place, slot in enumerate(known):
            if slot is None:
                known[place] = self._new_slot(int(keys[place]))
        slots = np.array(known, np.int64)
        self._count[slots] += amounts
        gone = self._count[slots] == 0
        for key, slot in zip(keys[gone].tolist(), slots[gone].tolist(), strict=True):
            del self._slots[key]
            self._free.append(slot)

    def rescore(self, pieces: set[int], frequency: Floats) -> None:
        """Compute anew the gains of the pairs that hold one of some pieces."""
        slots = np.concatenate([self._slots_holding(piece) for piece in pieces])
        count = self._count[slots]
        product = frequency[self.left[slots]] * frequency[self.right[slots]]
        base = count * np.log(np.maximum(count, 1) / np.maximum(product, 1))
        self._base[slots] = np.where(count < MIN_COUNT, -np.inf, base)

    def best(self, total: float) -> NDArray[np.intp]:
        """Find the pairs of largest gain, all of them when they tie; none when none gains.

        Args:
            total: N, the pieces of the corpus.
        """
        used = slice(self._used)
        gain = np.multiply(self._count[used], np.log(max(total, 1.0)), out=self._gain[used])
        gain += self._base[used]
        largest = gain.max(initial=0.0)
        if largest <= 0:
            return np.empty(0, np.intp)
        return np.flatnonzero(gain >= largest * (1 - TIE))

    def _slots_holding(self, piece: int) -> NDArray[np.int32]:
        """Give the slots of a piece's pairs, forgetting those that went to other pairs."""
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
