import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sbert_search.metrics.significance import (
    Difference,
    compare_correlations,
    compare_means,
    holm,
    mean_interval,
)

RESULT = Path(__file__).parents[1] / "results" / "significance.json"
Floats = NDArray[np.float64]


def test_a_difference_is_what_exact_enumeration_says() -> None:
    gains = np.array([0.5, -0.1, 0.4, 0.3, -0.2, 0.6, 0.1, 0.25])
    found = compare_means(np.zeros(8), gains, draws=100_000)
    signs = np.array(list(itertools.product([1, -1], repeat=8)))
    exact = np.mean(np.abs((signs * gains).mean(1)) >= gains.mean() - 1e-12)
    assert found.value == pytest.approx(gains.mean())
    assert found.p_value == pytest.approx(exact, abs=0.003)


def test_an_interval_of_a_mean_is_scipys_percentile_bootstrap() -> None:
    values = np.random.default_rng(1).exponential(size=80)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert mean_interval(values, draws=20_000) == pytest.approx(tuple(theirs), abs=0.02)


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
def test_correlations_of_resamples_are_scipys(kind: str) -> None:
    """Ties included: gold has six values, and a resample repeats items."""
    rng = np.random.default_rng(5)
    gold = rng.integers(0, 6, 60).astype(float)
    first, second = gold + rng.normal(size=60), gold + 2 * rng.normal(size=60)
    correlate = stats.spearmanr if kind == "spearman" else stats.pearsonr

    def difference(a: Floats, b: Floats, g: Floats) -> float:
        return float(correlate(b, g).statistic - correlate(a, g).statistic)

    found = compare_correlations(first, second, gold, kind=kind, draws=400, seed=3)  # type: ignore[arg-type]
    picks = np.random.default_rng(3).integers(0, 60, (400, 60))  # what it draws first
    drawn = [difference(first[p], second[p], gold[p]) for p in picks]
    assert found.value == pytest.approx(difference(first, second, gold), abs=1e-12)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_exchanges_of_ranks_are_counted_as_scipy_would() -> None:
    rng = np.random.default_rng(7)
    gold = rng.normal(size=9)
    first, second = gold + rng.normal(size=9), gold + rng.normal(size=9)
    a, b, g = (stats.rankdata(x) for x in (first, second, gold))
    observed = stats.pearsonr(b, g).statistic - stats.pearsonr(a, g).statistic
    null = []
    for swap in itertools.product([False, True], repeat=9):
        x, y = np.where(swap, b, a), np.where(swap, a, b)
        null.append(stats.pearsonr(y, g).statistic - stats.pearsonr(x, g).statistic)
    exact = np.mean(np.abs(null) >= abs(observed) - 1e-12)
    found = compare_correlations(first, second, gold, draws=50_000)
    assert found.p_value == pytest.approx(exact, abs=0.01)


def test_equal_runs_differ_by_nothing() -> None:
    values = np.random.default_rng(0).random(40)
    assert compare_means(values, values) == Difference(0.0, 0.0, 0.0, 1.0)
    assert compare_correlations(values, values, values**2) == Difference(0.0, 0.0, 0.0, 1.0)


def test_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(0)
    first = rng.random(300)
    found = compare_means(first, first + 0.02 + 0.05 * rng.normal(size=300))
    assert 0.01 < found.low < 0.02 < found.high < 0.03
    assert found.p_value == pytest.approx(1 / 10_001)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.2]) == [0.2]
    assert holm([0.5, 0.6, 0.01]) == pytest.approx([1.0, 1.0, 0.03])
    assert holm([]) == []


def test_what_has_no_difference_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Shapes \(2,\) and \(3,\)"):
        compare_means([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="not finite"):
        compare_means([1, float("nan")], [1, 2])
    with pytest.raises(ValueError, match="at least 1"):
        mean_interval([])
    with pytest.raises(ValueError, match="All values of one side are equal"):
        compare_correlations([1, 1], [1, 2], [1, 2])


def like_ndcg(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Two systems of one quality: many equal queries, many at 0 or 1, as nDCG@10 has them."""
    values = rng.choice([0.0, 0.39, 0.5, 0.63, 1.0], (2, n), p=[0.25, 0.1, 0.1, 0.15, 0.4])
    values[1] = np.where(rng.random(n) < 0.5, values[0], values[1])
    return values[0], values[1]


def means(rng: np.random.Generator, n: int, draws: int, seed: int) -> Difference:
    return compare_means(*like_ndcg(rng, n), draws=draws, seed=seed)


def correlations(rng: np.random.Generator, n: int, draws: int, seed: int) -> Difference:
    gold = np.round(rng.random(n) * 20) / 4  # 0 to 5 in quarters
    shared, first, second = rng.normal(size=(3, n))
    return compare_correlations(
        gold + shared + first, 0.1 * (gold + shared + second), gold, draws=draws, seed=seed
    )


def false_positives(
    compare: Callable[[np.random.Generator, int, int, int], Difference],
    *,
    trials: int,
    n: int,
    draws: int,
) -> tuple[float, float]:
    """Share of trials with p < 0.05, and with an interval that leaves 0 out."""
    rng = np.random.default_rng(11)
    found = [compare(rng, n, draws, trial) for trial in range(trials)]
    p = float(np.mean([each.p_value < 0.05 for each in found]))
    return p, float(np.mean([not each.low <= 0 <= each.high for each in found]))


@pytest.mark.parametrize("compare", [means, correlations])
def test_identical_systems_differ_in_5_percent_of_trials(
    compare: Callable[..., Difference],
) -> None:
    by_test, by_interval = false_positives(compare, trials=1_500, n=50, draws=300)
    assert by_test == pytest.approx(0.05, abs=0.015)
    assert by_interval == pytest.approx(0.05, abs=0.025)  # percentile intervals are a little short


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_identical_systems_differ_in_5_percent_of_many_trials() -> None:
    figures = {}
    trials = 2_000
    for compare, n in itertools.product((means, correlations), (50, 300)):
        by_test, by_interval = false_positives(compare, trials=trials, n=n, draws=500)
        figures[f"{compare.__name__}, {n} items"] = {
            "trials": trials,
            "p below 0.05": by_test,
            "0 outside the 95 % interval": by_interval,
        }
        assert by_test == pytest.approx(0.05, abs=0.015)
    RESULT.write_text(json.dumps(figures, indent=1) + "\n")
