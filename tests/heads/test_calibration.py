"""Probabilities, the calibration error by hand, and the temperature of data made with one."""

from __future__ import annotations

import numpy as np
import pytest

from sbert_search.heads.calibration import (
    COLDEST,
    HOTTEST,
    expected_calibration_error,
    fit_temperature,
    probabilities,
)


def test_calibration_error_by_hand() -> None:
    # Bins of width 1/15: (7/15, 8/15] has mean confidence 0.5 and accuracy 0; (14/15, 1] has 0.97
    # and 2/3. The weights are 1/4 and 3/4.
    error = expected_calibration_error([0.5, 0.94, 0.97, 1.0], [0, 1, 0, 1])
    assert error == pytest.approx(0.25 * 0.5 + 0.75 * (0.97 - 2 / 3))
    assert expected_calibration_error([0.0, 1.0], [0, 1]) == 0
    # The border 0.2 belongs to the bin below it, so that the two errors do not cancel out.
    assert expected_calibration_error([0.2, 0.21], [1, 0]) == pytest.approx(1.01 / 2)
    with pytest.raises(ValueError, match="at least 1"):
        expected_calibration_error([], [])


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_of_drawn_labels_is_found(temperature: float) -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (40_000, 3))
    chances = probabilities(logits, "class", temperature)
    gold = (chances.cumsum(axis=1) < rng.random((40_000, 1))).sum(axis=1)
    fitted = fit_temperature(logits, gold)
    assert fitted == pytest.approx(temperature, rel=0.05)
    several = (rng.random(logits.shape) < probabilities(logits, "several", temperature)).astype(int)
    assert fit_temperature(logits, several, "several") == pytest.approx(temperature, rel=0.05)


def test_the_fitted_temperature_has_the_highest_likelihood() -> None:
    rng = np.random.default_rng(2)
    logits, gold = rng.normal(0, 2, (50, 4)), rng.integers(0, 4, 50)
    logits[np.arange(50), gold] += 2

    def loss(temperature: float) -> float:
        chances = probabilities(logits, "class", temperature)
        return -float(np.log(chances[np.arange(50), gold]).sum())

    fitted = fit_temperature(logits, gold)
    assert loss(fitted) <= min(loss(fitted * 1.01), loss(fitted / 1.01))


def test_limits_numbers_and_shapes() -> None:
    assert fit_temperature([[9.0, 0.0]], [0]) == pytest.approx(COLDEST)
    assert fit_temperature([[9.0, 0.0]], [1]) == pytest.approx(HOTTEST)
    assert fit_temperature([[9.0]], [2.5], "number") == 1
    for logits, gold in (([[1.0, 2.0]], [0, 1]), (np.zeros((0, 2)), [])):
        with pytest.raises(ValueError, match="do not fit together"):
            fit_temperature(logits, gold)


def test_probabilities_of_large_logits_are_finite() -> None:
    assert probabilities([[1e4, 0.0]], "class").tolist() == [[1.0, 0.0]]
    assert probabilities([[-1e4, 1e4, 0.0]], "several").tolist() == [[0.0, 1.0, 0.5]]
    assert probabilities([[3.5]], "number", 2.0).tolist() == [[3.5]]
    assert probabilities([[2.0, 0.0]], "class", 2.0)[0, 0] == pytest.approx(1 / (1 + np.exp(-1)))
