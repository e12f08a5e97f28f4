from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from sbert_search.errors import EvaluationError
from sbert_search.evaluate.metrics.correlation import pearson, spearman


def test_hand_worked_values() -> None:
    assert spearman([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert spearman([1, 2, 3], [1, 10, 100]) == pytest.approx(1.0)
    assert pearson([1, 2, 3], [1, 10, 100]) == pytest.approx(99 / np.sqrt(2 * 5994))
    assert pearson([1, 2, 3], [-2, -4, -6]) == pytest.approx(-1.0)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    """Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5 over sqrt(4.5 * 5)."""
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / np.sqrt(4.5 * 5))


def test_equals_scipy() -> None:
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 6, 500)  # many ties, as STS scores have
    predicted = gold + rng.normal(size=500)
    assert spearman(predicted, gold) == stats.spearmanr(predicted, gold).statistic
    assert pearson(predicted, gold) == stats.pearsonr(predicted, gold).statistic


@pytest.mark.parametrize("correlation", [spearman, pearson])
def test_undefined_correlations_are_named(correlation: Callable[..., float]) -> None:
    with pytest.raises(EvaluationError, match=r"All 3 predicted scores are 0\.5; the correlation"):
        correlation([0.5, 0.5, 0.5], [1, 2, 3])
    with pytest.raises(EvaluationError, match="All 2 gold scores are 4"):
        correlation([0.5, 0.6], [4, 4])
    with pytest.raises(EvaluationError, match="predicted score at position 1 is nan"):
        correlation([0.5, float("nan")], [1, 2])
    with pytest.raises(ValueError, match=r"Shapes \(2,\) and \(3,\)"):
        correlation([1, 2], [1, 2, 3])
    with pytest.raises(EvaluationError, match="scored rows is 1; a correlation needs at least 2"):
        correlation([1], [1])
