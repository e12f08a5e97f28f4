"""Metrics of classifiers, against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from sbert_search.evaluate.metrics.classification import (
    accuracy,
    confusion,
    f1,
    macro_f1,
    matthews,
    share,
)


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_equal_to_scikit_learn(n_classes: int) -> None:
    rng = np.random.default_rng(n_classes)
    gold = rng.integers(0, n_classes, 200)
    predicted = np.where(rng.random(200) < 0.6, gold, rng.integers(0, n_classes, 200))
    table = confusion(predicted, gold, n_classes)
    assert (table == sk.confusion_matrix(gold, predicted)).all()
    assert accuracy(table) == pytest.approx(sk.accuracy_score(gold, predicted))
    assert macro_f1(table) == pytest.approx(sk.f1_score(gold, predicted, average="macro"))
    assert matthews(table) == pytest.approx(sk.matthews_corrcoef(gold, predicted))


def test_many_tables_at_once() -> None:
    tables = np.random.default_rng(0).integers(0, 9, (5, 3, 3))
    for metric in (accuracy, macro_f1, matthews):
        assert metric(tables).tolist() == [float(metric(table)) for table in tables]


def test_undefined_values_are_zero() -> None:
    constant = confusion([0, 0, 0], [0, 1, 0], 3)
    assert matthews(constant) == 0
    # Class 0: precision 2/3, recall 1; class 1: nothing found; class 2 does not occur.
    assert macro_f1(constant) == pytest.approx((0.8 + 0) / 2)
    assert accuracy(np.zeros((2, 2))) == 0


def test_micro_f1_of_several_labels() -> None:
    gold = np.array([[1, 0, 1], [0, 0, 1]])
    predicted = np.array([[1, 1, 0], [0, 0, 1]])
    counts = (gold & predicted).sum(), predicted.sum(), gold.sum()
    assert f1(*counts) == pytest.approx(sk.f1_score(gold, predicted, average="micro"))
    assert share(counts[0], counts[1]) == pytest.approx(2 / 3)
    assert (float(f1(0, 0, 0)), float(share(0, 0))) == (0, 0)


def test_indices_outside_the_classes_are_refused() -> None:
    for predicted in ([0, 2], [-1, 0]):
        with pytest.raises(ValueError, match="outside 0 to 1"):
            confusion(predicted, [0, 1], 2)
    with pytest.raises(ValueError, match="not lists of one length"):
        confusion([0], [0, 1], 2)
