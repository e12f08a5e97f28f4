"""Group rows into steps by their class, or so that no text is another row's positive."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from sbert_search.train.loop.objective import BatchingConfig, Rows

TOGETHER = 2  # texts of a class that come into a step together


def class_steps(
    drawn: Rows,
    classes: NDArray[np.int64],
    lengths: Rows,
    config: BatchingConfig,
    order: np.random.Generator,
) -> list[Rows]:
    """Group rows into steps that have two texts of a class or more, and two classes or more.

    The rows of each class are shuffled and cut into groups of two (the last has three if their
    number is odd). The groups of a class are spread over the epoch: each has a random place in an
    equal part of it. So a step has many classes of two texts if there are many, and more texts of
    each if there are few. If a class is so large that a step would have no other one, texts of
    other classes are repeated.

    ``drawn`` are the rows of an epoch; a row may occur several times. ``classes`` and ``lengths``
    (tokens) are of all rows of the data, (n,); there must be two classes, and one of two rows.

    Source: Hermans et al. 2017, In Defense of the Triplet Loss (arXiv:1703.07737), section 2:
    batches of P classes with K examples each.
    """
    # Not sorted by length within `config.window`: texts of like length often have the same class.
    data = _Data(classes, lengths, config)
    steps = [_Step(data)]
    for group in _groups(drawn, classes, order):
        if steps[-1].rows and not steps[-1].has_room(group):
            steps[-1].complete(order)
            steps.append(_Step(data))
        steps[-1].add(group)
    if len(steps) > 1 and 2 * steps[-1].size < config.size:
        steps[-2].add(steps.pop().rows)
    steps[-1].complete(order)
    return [np.array(steps[n].rows, dtype=np.int64) for n in order.permutation(len(steps))]


def _groups(drawn: Rows, classes: NDArray[np.int64], order: np.random.Generator) -> list[list[int]]:
    """Cut the rows of each class into groups, and put all groups into the order of the epoch."""
    # A row that is drawn several times comes again after the other rows of its class.
    shuffled = drawn[np.lexsort((order.permutation(len(classes))[drawn], _copies_before(drawn)))]
    groups: list[list[int]] = []
    places: list[NDArray[np.float64]] = []
    for members in _by_class(classes[shuffled]):
        rows = shuffled[members]
        together = 1 if (rows == rows[0]).all() else TOGETHER
        count = len(rows) // together
        groups += [part.tolist() for part in np.split(rows, together * np.arange(1, count))]
        places.append((np.arange(count) + order.random(count)) / count)
    return [groups[n] for n in np.argsort(np.concatenate(places), kind="stable").tolist()]


def _by_class(classes: NDArray[np.int64]) -> list[Rows]:
    """Return the positions of each class, in the order of the class numbers."""
    positions = np.argsort(classes, kind="stable")
    return np.split(positions, np.flatnonzero(np.diff(classes[positions])) + 1)


def _copies_before(drawn: Rows) -> NDArray[np.int64]:
    """Count for each drawn row how many copies of it were drawn before."""
    positions = np.argsort(drawn, kind="stable")
    starts = np.flatnonzero(np.diff(drawn[positions], prepend=-1))
    copies = np.empty(len(drawn), dtype=np.int64)
    sizes = np.diff(starts, append=len(drawn))
    copies[positions] = np.arange(len(drawn)) - np.repeat(starts, sizes)
    return copies


class _Data:
    def __init__(self, classes: NDArray[np.int64], lengths: Rows, config: BatchingConfig) -> None:
        # Class and size of each row; a size is in the unit of the limit.
        self.classes: list[int] = np.unique(classes, return_inverse=True)[1].tolist()
        self.sizes: list[int] = [1] * len(classes)
        if config.unit == "tokens":
            self.sizes = lengths.tolist()
        self.limit, self.members = config.size, _by_class(classes)  # rows of each class
        self.large = [rows for rows in self.members if len(rows) >= TOGETHER]


@dataclass(slots=True)
class _Step:
    data: _Data
    rows: list[int] = field(default_factory=list)
    size: int = 0
    counts: dict[int, int] = field(default_factory=dict)  # different texts of each class

    def add(self, rows: list[int]) -> None:
        for row in rows:
            of_class = self.data.classes[row]
            self.counts[of_class] = self.counts.get(of_class, 0) + (row not in self.rows)
            self.size += self.data.sizes[row]
            self.rows.append(row)

    def has_room(self, group: list[int]) -> bool:
        """Whether rows of one class fit, and with them those that `complete` would then add."""
        of_class = self.data.classes[group[0]]
        counts = {**self.counts, of_class: self.counts.get(of_class, 0) + len(group)}
        sizes = [self.data.sizes[row] for row in group]
        return self.size + sum(sizes) + _lacking(counts) * sizes[0] <= self.data.limit

    def complete(self, order: np.random.Generator) -> None:
        """Add rows until there are two texts of a class, and texts of two classes."""
        while lacking := _lacking(self.counts):
            if lacking == TOGETHER:
                members = self.data.large[int(order.integers(len(self.data.large)))]
            else:
                own, other = (
                    next(iter(self.counts)),
                    int(order.integers(len(self.data.members) - 1)),
                )
                members = self.data.members[other + (other >= own)]
            # No class has more than one row in the step that may be drawn again.
            drawn = order.choice(len(members), min(TOGETHER + 1, len(members)), replace=False)
            new = [row for row in members[drawn].tolist() if row not in self.rows]
            both = TOGETHER * self.data.sizes[new[0]] <= self.data.limit - self.size
            self.add(new[: TOGETHER if both else lacking])


def _lacking(counts: dict[int, int]) -> int:
    """Return how many texts a step lacks: two of a class, one of another class, or none."""
    if max(counts.values()) < TOGETHER:
        return TOGETHER
    return int(len(counts) < 2)


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
        # Texts of each row by number, (n, width): the anchor, its positive, ...; negative: none.
        # Group of each row, (n,); -1: none.
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

        Pairs are left out if every row with the first key also has the second one.
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

    No other row of a step may have a key that a row excludes: its own keys and perhaps others.
    Other rows stay in the planned order, and steps in the planned sizes, unless none of the
    remaining rows may be in one. These are left out if they fill less than half of a step, or if
    the next step could have only one row.
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
    row with a key, its whole heap is skipped, so a step does not look at all waiting rows again.
    """

    def __init__(self, rows: Sequence[int], keys: Keys, excluded: Keys) -> None:
        self.new, self.keys, self.excluded = iter(enumerate(rows)), keys, excluded
        self.waiting: dict[int, list[Place]] = defaultdict(list)  # by key, a heap of rows

    def next_step(self, size: int) -> list[int]:
        """Take rows that exclude no key of each other, in order, at most ``size``."""
        step: list[int] = []
        taken: set[int] = set()
        # A heap of (position of the first row that waits for a key, key).
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
        """Take the first row that waits for a key not in ``taken``, or else a new row."""
        while heads:
            key = heapq.heappop(heads)[1]
            if key in taken:
                continue  # all rows that wait for this key stay in its heap
            place = heapq.heappop(self.waiting[key])
            if self.waiting[key]:
                heapq.heappush(heads, (self.waiting[key][0][0], key))
            return place
        return next(self.new, None)
