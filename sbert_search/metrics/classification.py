"""Metrics of classifiers, computed from numbers of items.

``counts[g, p]`` is the number of items of class ``g`` that were predicted as class ``p``. A metric
gets one matrix, or several of them at once, (..., classes, classes), as a bootstrap makes them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def confusion(predicted: ArrayLike, gold: ArrayLike, n_classes: int) -> Floats:
    """Count the items by gold and predicted class, (n_classes, n_classes).

    Args:
        predicted: Index of the predicted class of each item, (n,).
        gold: Index of the true class of each item, (n,).
        n_classes: Number of classes.

    Raises:
        ValueError: The arguments are not equally long, or hold an index outside the classes.
    """
    p, g = np.asarray(predicted, dtype=np.int64), np.asarray(gold, dtype=np.int64)
    if p.shape != g.shape or p.ndim != 1:
        raise ValueError(f"Shapes {p.shape} and {g.shape} are not two lists of equal length.")
    if len(p) and not (min(p.min(), g.min()) >= 0 and max(p.max(), g.max()) < n_classes):
        raise ValueError(f"An index of a class is outside 0 to {n_classes - 1}.")
    cells = np.bincount(g * n_classes + p, minlength=n_classes**2)
    return cells.reshape(n_classes, n_classes).astype(np.float64)


def accuracy(counts: ArrayLike) -> Floats:
    """Share of items whose predicted class is right, (...)."""
    table = np.asarray(counts, dtype=np.float64)
    return _ratio(_diagonal(table).sum(-1), table.sum((-2, -1)))


def f1_by_class(counts: ArrayLike) -> Floats:
    """F1 of each class, (..., classes); 0 for a class that no item has or is predicted to have."""
    return f1(*_sums(counts))


def macro_f1(counts: ArrayLike) -> Floats:
    """Mean F1 of the classes that occur as gold or predicted class, (...)."""
    return macro_f1_of(*_sums(counts))


def macro_f1_of(matched: Floats, predicted: Floats, gold: Floats) -> Floats:
    """`macro_f1` from the numbers of right, of predicted and of gold items, (..., classes) each."""
    occurs = (predicted + gold) > 0
    values = f1(matched, predicted, gold) * occurs
    return _ratio(values.sum(-1), occurs.sum(-1).astype(np.float64))


def matthews(counts: ArrayLike) -> Floats:
    """Matthews correlation coefficient, for any number of classes, (...).

    It is 0 if all items have one gold class or one predicted class.

    Source: Gorodkin 2004, Comparing two K-category assignments by a K-category correlation
    coefficient, section 2.
    """
    return matthews_of(*_sums(counts))


def matthews_of(matched: Floats, predicted: Floats, gold: Floats) -> Floats:
    """`matthews` from the numbers of right, of predicted and of gold items, (..., classes) each."""
    total = gold.sum(-1)
    covariance = matched.sum(-1) * total - (gold * predicted).sum(-1)
    spread = (total**2 - (predicted**2).sum(-1)) * (total**2 - (gold**2).sum(-1))
    return _ratio(covariance, np.sqrt(np.maximum(spread, 0)))


def f1(matched: ArrayLike, predicted: ArrayLike, gold: ArrayLike) -> Floats:
    """F1 from the numbers of matches, of predictions and of gold items; 0 where all three are 0.

    The arguments have one shape, (...), which is also that of the result. From numbers that are
    summed over all labels of a multi-label classifier, the result is its micro F1. From numbers of
    entities, it is the F1 of entities.
    """
    both = np.asarray(predicted, dtype=np.float64) + np.asarray(gold, dtype=np.float64)
    return _ratio(2 * np.asarray(matched, dtype=np.float64), both)


def share(part: ArrayLike, whole: ArrayLike) -> Floats:
    """Precision or recall: ``part / whole``, 0 where ``whole`` is 0, (...)."""
    return _ratio(np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64))


def _sums(counts: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Number of right, of predicted and of gold items of each class, (..., classes) each."""
    table = np.asarray(counts, dtype=np.float64)
    return _diagonal(table), table.sum(-2), table.sum(-1)


def _diagonal(table: Floats) -> Floats:
    return np.diagonal(table, axis1=-2, axis2=-1)


def _ratio(above: Floats, below: Floats) -> Floats:
    """Divide; 0 where the denominator is 0."""
    return np.divide(above, below, out=np.zeros(np.shape(below)), where=np.asarray(below) != 0)
