"""Steps in which no two rows have something in common, such as a text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, repeat

import numpy as np

from sbert_search.training.loop.batching import Rows


def without_duplicates(steps: Sequence[Rows], keys: Callable[[int], set[int]]) -> list[Rows]:
    """Let rows that share a key with one before them in their step wait for the next step.

    Args:
        steps: Rows of each step, as they would be.
        keys: What a row has that no other of its step may have.

    Returns:
        Steps of the same sizes, in the same order but for the rows that waited. When too many of
        those that are left share a key to fill half a step, they are left out.
    """
    queue = deque(chain.from_iterable(step.tolist() for step in steps))
    made: list[Rows] = []
    for size in chain(map(len, steps), repeat(len(steps[-1]))):
        step: list[int] = []
        taken: set[int] = set()
        passed_over: list[int] = []
        while queue and len(step) < size:
            row = queue.popleft()
            if taken.isdisjoint(own := keys(row)):
                taken |= own
                step.append(row)
            else:
                passed_over.append(row)
        if made and 2 * len(step) < size:
            break
        made.append(np.array(step, dtype=np.int64))
        queue.extendleft(reversed(passed_over))
    return made
