"""Group rows into steps in which no text of a row is a positive of another row's anchor."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from sbert_search.training.loop.batching import Rows

Place = tuple[int, int]
"""Position of a row in the planned order, and number of the row."""


Keys = Callable[[int], set[int]]
"""Function that returns keys of a row, such as the numbers of its texts."""


class TextKeys:
    """The keys of rows of texts, and the keys that must not be in a step with a row.

    The keys of a row are its texts and its group. Two texts are related if one of them is a
    positive of the other in some row; the texts of a group are related to the group. A step with a
    row has neither its keys nor a text related to one of them in another row, because such a text
    could be a positive of an anchor that the loss treats as its negative.
    """

    def __init__(self, texts: NDArray[np.int64], groups: NDArray[np.int64]) -> None:
        """Find the related texts.

        Args:
            texts: Texts of each row by number, the anchor first, then its positive; a negative
                number is no text. (n, width).
            groups: Group of each row, -1 for none, (n,).
        """
        self.texts, self.groups = texts, groups
        self._related: dict[int, set[int]] = defaultdict(set)
        for one, other in self._pairs():
            self._related[one].add(other)
            self._related[other].add(one)

    def own(self, row: int) -> set[int]:
        """Return the texts of a row, and a negative key for its group."""
        texts = {text for text in self.texts[row].tolist() if text >= 0}
        group = int(self.groups[row])
        return texts if group < 0 else texts | {-1 - group}

    def excluded(self, row: int) -> set[int]:
        """Return the keys of a row, and those related to them."""
        own = self.own(row)
        return own.union(*(self._related[key] for key in own if key in self._related))

    def _pairs(self) -> list[list[int]]:
        """Return pairs of related keys: anchor and positive, group and text.

        Pairs are left out if every row with the first key also has the second one: an anchor with
        one positive, a group with one row. These rows share a key already.
        """
        pairs = np.unique(self.texts[:, :2], axis=0)
        _, anchor, n_positives = np.unique(pairs[:, 0], return_inverse=True, return_counts=True)
        found: list[list[int]] = pairs[n_positives[anchor] > 1].tolist()
        groups, group, n_rows = np.unique(self.groups, return_inverse=True, return_counts=True)
        for row in np.flatnonzero((groups >= 0)[group] & (n_rows > 1)[group]).tolist():
            found += [[-1 - int(self.groups[row]), text] for text in self.texts[row, :2].tolist()]
        return found


def without_duplicates(steps: Sequence[Rows], keys: Keys, excluded: Keys) -> list[Rows]:
    """Move a row that may not be in a step with an earlier row of it to a later step.

    Args:
        steps: Planned rows of each step.
        keys: Returns the keys of a row.
        excluded: Returns the keys that no other row of a step with this row may have. These are the
            keys of the row and perhaps others.

    Returns:
        Steps of the planned sizes. Rows stay in the planned order, except for the moved rows. A
        step is smaller if none of the remaining rows may be in it. The remaining rows are left
        out if they fill less than half of a step, or if the next step could have only one row.
    """
    rows = list(chain.from_iterable(step.tolist() for step in steps))
    queue, n_left = _Queue(rows, keys, excluded), len(rows)
    made: list[Rows] = []
    for size in chain(map(len, steps), repeat(max(2, len(steps[-1])))):
        step = queue.next_step(size)
        if made and (len(step) < min(2, size) or 2 * n_left < size):
            break
        n_left -= len(step)
        made.append(np.array(step, dtype=np.int64))
    return made


class _Queue:
    """The rows that are not in a step yet, in the planned order.

    A row that excludes a key of the current step waits in a heap for that key. Once a step has a
    row with a key, the whole heap of this key is skipped, so a step does not look at all waiting
    rows again.
    """

    def __init__(self, rows: Sequence[int], keys: Keys, excluded: Keys) -> None:
        self.new, self.keys, self.excluded = iter(enumerate(rows)), keys, excluded
        self.waiting: dict[int, list[Place]] = defaultdict(list)  # by key, a heap of rows

    def next_step(self, size: int) -> list[int]:
        """Take rows that exclude no key of each other, in order, at most ``size``."""
        step: list[int] = []
        taken: set[int] = set()
        heads = [(heap[0][0], key) for key, heap in self.waiting.items() if heap]
        heapq.heapify(heads)
        while len(step) < size:
            place = self._next(heads, taken)
            if place is None:
                break
            if blocking := self.excluded(place[1]) & taken:
                heapq.heappush(self.waiting[min(blocking)], place)
            else:
                step.append(place[1])
                taken |= self.keys(place[1])
        return step

    def _next(self, heads: list[tuple[int, int]], taken: set[int]) -> Place | None:
        """Take the first row that waits for a key not in ``taken``; if none waits, take a new row.

        ``heads`` is a heap of (position of the first row that waits for a key, key).
        """
        while heads:
            key = heapq.heappop(heads)[1]
            if key in taken:
                continue  # all rows that wait for this key stay in its heap
            place = heapq.heappop(self.waiting[key])
            if self.waiting[key]:
                heapq.heappush(heads, (self.waiting[key][0][0], key))
            return place
        return next(self.new, None)
