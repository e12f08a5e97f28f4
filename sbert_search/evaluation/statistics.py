"""Metrics of task heads that are computed from sums over all items, such as F1.

An item is a text or a sentence. An evaluation record stores the values that each item adds to the
sums, under the names in `CLASSES` or `COUNTS`. Confidence intervals and comparisons are computed
from these values.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sbert_search.metrics.classification import f1, macro_f1_of, matthews_of, share
from sbert_search.metrics.sums import Statistic

CLASSES = ("gold class", "predicted class")  # indices in the sorted class names
COUNTS = ("matched", "predicted", "gold")  # numbers of entities or labels of an item

_OF_CLASSES = {"Matthews": matthews_of, "macro F1": macro_f1_of}
_OF_COUNTS: Mapping[str, Statistic] = {
    "F1": lambda sums: f1(sums[..., 0], sums[..., 1], sums[..., 2]),
    "precision": lambda sums: share(sums[..., 0], sums[..., 1]),
    "recall": lambda sums: share(sums[..., 0], sums[..., 2]),
}

PerItem = Mapping[str, Mapping[str, float]]
Floats = NDArray[np.float64]


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
