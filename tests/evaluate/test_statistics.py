"""Metrics from what a record stores of each item."""

from __future__ import annotations

import numpy as np
import pytest

from sbert_search.evaluate.metrics.classification import (
    class_count,
    confusion,
    macro_f1,
    matthews,
    summed,
)

GOLD = [0, 1, 2, 2, 1, 0, 2]
PREDICTED = [0, 2, 2, 2, 1, 1, 0]


def items(**columns: list[int]) -> dict[str, dict[str, float]]:
    return {
        name.replace("_", " "): {str(n): float(value) for n, value in enumerate(values)}
        for name, values in columns.items()
    }


def test_class_metrics_equal_those_of_the_confusion_matrix() -> None:
    record = items(accuracy=[1], gold_class=GOLD, predicted_class=PREDICTED)
    table = confusion(PREDICTED, GOLD, 3)
    for name, metric in (("Matthews", matthews), ("macro F1", macro_f1)):
        for n_classes in (None, 5):
            found = summed(name, record, n_classes)
            assert found is not None
            counts, statistic = found
            assert statistic(counts.sum(axis=0)) == pytest.approx(float(metric(table)))
            # Several sums at once give several values, as a bootstrap needs them.
            many = np.stack([counts.sum(axis=0), counts[:4].sum(axis=0)])
            first = float(metric(confusion(PREDICTED[:4], GOLD[:4], 3)))
            assert statistic(many)[1] == pytest.approx(first)
    assert class_count(record, items(gold_class=[4], predicted_class=[0])) == 5


def test_entity_metrics_and_metrics_that_are_no_sums() -> None:
    record = items(matched=[1, 0], predicted=[2, 1], gold=[1, 4])
    for name, value in (("F1", 2 / 8), ("precision", 1 / 3), ("recall", 1 / 5)):
        found = summed(name, record)
        assert found is not None
        assert found[1](found[0].sum(axis=0)) == pytest.approx(value)
    assert summed("accuracy", record) is None
    assert summed("F1", items(gold=[1])) is None
    assert summed("Matthews", record) is None
