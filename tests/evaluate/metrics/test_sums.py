"""Intervals and tests of metrics of sums, against those of means and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.evaluate.metrics.classification import compare_sums, f1, interval_of_sums
from sbert_search.evaluate.metrics.significance import compare_means

Floats = NDArray[np.float64]


def mean(sums: Floats) -> Floats:
    return np.asarray(sums[..., 0] / sums[..., 1])


def entity_f1(sums: Floats) -> Floats:
    return f1(sums[..., 0], sums[..., 1], sums[..., 2])


def test_a_mean_as_a_function_of_sums_is_compared_as_a_mean() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(200), rng.random(200) + 0.1
    ones = np.ones(200)
    ours = compare_sums(np.stack([a, ones], 1), np.stack([b, ones], 1), mean)
    theirs = compare_means(a, b)
    assert ours.value == pytest.approx(theirs.value)
    assert ours.p_value == pytest.approx(theirs.p_value, abs=2e-4)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)
    low, high = interval_of_sums(np.stack([a, ones], 1), mean)
    error = 1.96 * a.std() / np.sqrt(200)
    assert (low, high) == pytest.approx((a.mean() - error, a.mean() + error), abs=0.005)


def test_equal_systems_differ_by_nothing() -> None:
    counts = np.random.default_rng(1).integers(0, 4, (50, 3))
    same = compare_sums(counts, counts, entity_f1)
    assert (same.value, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    with pytest.raises(ValueError, match="not those of the same items"):
        compare_sums(counts, counts[:10], entity_f1)


def test_a_better_system_is_shown_to_be_better() -> None:
    gold = np.full(80, 2.0)
    worse = np.stack([np.tile([0.0, 1.0], 40), gold, gold], 1)
    better = np.stack([np.tile([1.0, 2.0], 40), gold, gold], 1)
    found = compare_sums(worse, better, entity_f1)
    assert found.value == pytest.approx(0.75 - 0.25)
    assert found.low > 0.4
    assert found.p_value < 0.001
