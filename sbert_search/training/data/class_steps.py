"""Group texts with a class into steps in which a loss over classes has something to compare.

Such a loss needs two texts of one class, an anchor and its positive, and a text of another class as
the negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sbert_search.training.loop.batching import BatchingConfig, Rows

TOGETHER = 2  # texts of a class that come into a step together


def class_steps(
    drawn: Rows,
    classes: NDArray[np.int64],
    lengths: Rows,
    config: BatchingConfig,
    order: np.random.Generator,
) -> list[Rows]:
    """Group rows into steps that have two texts of a class or more, and two classes or more.

    The rows of each class are shuffled and cut into groups of two; the last group has three rows if
    their number is odd. The groups of a class are spread over the epoch: the epoch has as many
    equal parts, and each part has one group, at a random place. A step therefore has many classes
    with two texts each if there are many classes, and more texts of each class if there are few. If
    a class is so large that a step would have no other one, texts of other classes are repeated.

    Rows are not sorted by length within ``config.window``, since texts of like length often have
    the same class.

    Args:
        drawn: The rows of an epoch; a row may occur several times.
        classes: Class of each row of the data, (n,): two classes or more, one of them with two rows
            or more.
        lengths: Number of tokens of each row of the data, (n,).
        config: Size of a step.
        order: Random generator of this epoch.

    Returns:
        The rows of each step.

    Source: Hermans et al. 2017, In Defense of the Triplet Loss (arXiv:1703.07737), section 2:
    batches of P classes with K examples each.
    """
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
    """The classes and sizes of all rows.

    Attributes:
        classes: Class of each row.
        sizes: Size of each row, in the unit of the limit.
        limit: Size of a step.
        members: The rows of each class.
        large: The rows of each class that has two rows or more.
    """

    def __init__(self, classes: NDArray[np.int64], lengths: Rows, config: BatchingConfig) -> None:
        self.classes: list[int] = np.unique(classes, return_inverse=True)[1].tolist()
        self.sizes: list[int] = [1] * len(classes)
        if config.unit == "tokens":
            self.sizes = lengths.tolist()
        self.limit, self.members = config.size, _by_class(classes)
        self.large = [rows for rows in self.members if len(rows) >= TOGETHER]


@dataclass(slots=True)
class _Step:
    """A step that is being filled."""

    data: _Data
    rows: list[int] = field(default_factory=list)
    size: int = 0
    counts: dict[int, int] = field(default_factory=dict)  # different texts of each class

    def add(self, rows: list[int]) -> None:
        """Add rows."""
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
