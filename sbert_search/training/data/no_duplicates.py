"""Group rows into steps in which no two rows share a key, such as a text."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, repeat

import numpy as np

from sbert_search.training.loop.batching import Rows

Place = tuple[int, int]
"""Position of a row in the planned order, and number of the row."""


def without_duplicates(steps: Sequence[Rows], keys: Callable[[int], set[int]]) -> list[Rows]:
    """Move a row that shares a key with an earlier row of its step to a later step.

    Args:
        steps: Planned rows of each step.
        keys: Function that returns the keys of a row.

    Returns:
        Steps of the planned sizes. Rows stay in the planned order, except for the moved rows. A
        step is smaller if all remaining rows share keys with its rows. The remaining rows are left
        out if they fill less than half of a step, or if the next step could have only one row.
    """
    rows = list(chain.from_iterable(step.tolist() for step in steps))
    queue, n_left = _Queue(rows, keys), len(rows)
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

    A row that shares a key with a row of the current step waits in a heap for that key. Once a step
    has a row with a key, the whole heap of this key is skipped, so a step does not look at all
    waiting rows again.
    """

    def __init__(self, rows: Sequence[int], keys: Callable[[int], set[int]]) -> None:
        self.new, self.keys = iter(enumerate(rows)), keys
        self.waiting: dict[int, list[Place]] = defaultdict(list)  # by key, a heap of rows

    def next_step(self, size: int) -> list[int]:
        """Take rows that share no key, in order, at most ``size``."""
        step: list[int] = []
        taken: set[int] = set()
        heads = [(heap[0][0], key) for key, heap in self.waiting.items() if heap]
        heapq.heapify(heads)
        while len(step) < size:
            place = self._next(heads, taken)
            if place is None:
                break
            own = self.keys(place[1])
            if blocking := own & taken:
                heapq.heappush(self.waiting[min(blocking)], place)
            else:
                step.append(place[1])
                taken |= own
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
