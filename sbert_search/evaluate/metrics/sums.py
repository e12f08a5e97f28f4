"""Metrics that are functions of sums over items, such as F1, with their intervals and tests.

F1 and Matthews correlation are no means over items. They are functions of counts, and the counts
are sums over items, so a bootstrap resamples the items and adds up their counts. The randomisation
test chooses items at random and swaps the counts of the two systems on these items;
`significance.compare_means` swaps their values in the same way.

An item is a text or a sentence. An evaluation record stores the values that each item adds to the
sums, under the names in `CLASSES` or `COUNTS`. Confidence intervals and comparisons are computed
from these values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.evaluate.metrics.heads import f1, macro_f1_of, matthews_of, share
from sbert_search.evaluate.metrics.significance import (
    DRAWS,
    LEVEL,
    Difference,
    draw_counts,
    percentiles,
    resampled,
    swaps,
    two_sided,
)

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Maps sums over items, (..., sums), to values of a metric, (...)."""


def interval_of_sums(
    counts: ArrayLike,
    statistic: Statistic,
    *,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a metric over items.

    Args:
        counts: What each item adds to the sums, (n, sums), n at least 1.
        statistic: The metric, as a function of the sums.
        draws: Number of resamples.
        level: Confidence level.
        seed: Seed of the bootstrap.
    """
    table, rng = np.asarray(counts, dtype=np.float64), np.random.default_rng(seed)
    values = [statistic(draw_counts(picks) @ table) for picks in resampled(rng, len(table), draws)]
    return percentiles(np.concatenate(values), level)


def compare_sums(
    first: ArrayLike,
    second: ArrayLike,
    statistic: Statistic,
    *,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> Difference:
    """Compare a metric of two systems on the same items.

    Args:
        first: What each item adds to the sums of the first system, (n, sums).
        second: The same for the second system, in the same order of items.
        statistic: The metric, as a function of the sums.
        draws: Number of resamples of the bootstrap, and of random exchanges of the test.
        level: Confidence level of the interval.
        seed: Seed of bootstrap and test.

    Raises:
        ValueError: ``first`` and ``second`` have different shapes.
    """
    a, b = (np.asarray(counts, dtype=np.float64) for counts in (first, second))
    if a.shape != b.shape:
        raise ValueError(f"Shapes {a.shape} and {b.shape} are not those of the same items.")
    rng, n = np.random.default_rng(seed), len(a)
    gains = []
    for picks in resampled(rng, n, draws):
        weights = draw_counts(picks)
        gains.append(statistic(weights @ b) - statistic(weights @ a))
    low, high = percentiles(np.concatenate(gains), level)
    null = []
    for swap in swaps(rng, n, draws):
        moved = swap @ (b - a)
        null.append(statistic(b.sum(0) - moved) - statistic(a.sum(0) + moved))
    value = float(statistic(b.sum(0)) - statistic(a.sum(0)))
    return Difference(value, low, high, two_sided(np.concatenate(null), value))


CLASSES = ("gold class", "predicted class")  # indices in the sorted class names
COUNTS = ("matched", "predicted", "gold")  # numbers of entities or labels of an item

_OF_CLASSES = {"Matthews": matthews_of, "macro F1": macro_f1_of}
_OF_COUNTS: Mapping[str, Statistic] = {
    "F1": lambda sums: f1(sums[..., 0], sums[..., 1], sums[..., 2]),
    "precision": lambda sums: share(sums[..., 0], sums[..., 1]),
    "recall": lambda sums: share(sums[..., 0], sums[..., 2]),
}

PerItem = Mapping[str, Mapping[str, float]]


def summed(
    metric: str, per_item: PerItem, n_classes: int | None = None
) -> tuple[Floats, Statistic] | None:
    """Return the values that each item adds to the sums, and a function from sums to the metric.

    Args:
        metric: Name of the metric.
        per_item: Values of each item, as in an evaluation record.
        n_classes: Number of classes; None: the largest class number in ``per_item`` plus one.

    Returns:
        The values, (n, sums), and the function. None if the metric is not computed from sums, or if
        ``per_item`` lacks the values.
    """
    if metric in _OF_COUNTS and all(name in per_item for name in COUNTS):
        return np.array([[*per_item[name].values()] for name in COUNTS]).T, _OF_COUNTS[metric]
    if metric not in _OF_CLASSES or not all(name in per_item for name in CLASSES):
        return None
    gold, predicted = (np.array([*per_item[name].values()], dtype=np.int64) for name in CLASSES)
    n, rows = n_classes or class_count(per_item), np.arange(len(gold))
    cells = np.zeros((len(gold), 3, n))  # of each class: right, predicted, gold
    cells[rows, 0, gold] = gold == predicted
    cells[rows, 1, predicted] = cells[rows, 2, gold] = 1.0
    of_classes = _OF_CLASSES[metric]

    def value(sums: Floats) -> Floats:
        by_class = sums.reshape(*sums.shape[:-1], 3, n)
        return of_classes(by_class[..., 0, :], by_class[..., 1, :], by_class[..., 2, :])

    return cells.reshape(len(gold), -1), value


def class_count(*records: PerItem) -> int:
    """Return the number of classes in records: the largest class number plus one."""
    return 1 + int(max(max(record[name].values()) for record in records for name in CLASSES))
