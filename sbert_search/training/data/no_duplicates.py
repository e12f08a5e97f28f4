"""Group rows into steps in which no two rows share a key, such as a text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, repeat

import numpy as np

from sbert_search.training.loop.batching import Rows


def without_duplicates(steps: Sequence[Rows], keys: Callable[[int], set[int]]) -> list[Rows]:
    """Move a row that shares a key with an earlier row of its step to a later step.

    Args:
        steps: Planned rows of each step.
        keys: Function that returns the keys of a row.

    Returns:
        Steps of the same sizes and order, except for the moved rows. If the last rows share so many
        keys that a step would be less than half full, they are dropped.
    """
    queue = deque(chain.from_iterable(step.tolist() for step in steps))
    made: list[Rows] = []
    for size in chain(map(len, steps), repeat(len(steps[-1]))):
        step: list[int] = []
        taken: set[int] = set()
        postponed: list[int] = []
        while queue and len(step) < size:
            row = queue.popleft()
            if taken.isdisjoint(own := keys(row)):
                taken |= own
                step.append(row)
            else:
                postponed.append(row)
        if made and 2 * len(step) < size:
            break
        made.append(np.array(step, dtype=np.int64))
        queue.extendleft(reversed(postponed))
    return made
