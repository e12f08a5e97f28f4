import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sbert_search.evaluate.metrics.significance import (
    Difference,
    compare_correlations,
    compare_means,
    holm,
    mean_interval,
    weighted_pearson,
)

RESULT = Path(__file__).parents[2] / "results" / "significance.json"
REPORTS = Path(__file__).parents[3] / "eval" / "reports" / "search"
Floats = NDArray[np.float64]
Compare = Callable[[np.random.Generator, int, int, int], Difference]

NDCG = (0.0, 0.39, 0.5, 0.63, 1.0)  # of a query with one relevant document
NDCG_SHARES = (0.25, 0.1, 0.1, 0.15, 0.4)


def test_a_difference_is_what_exact_enumeration_says() -> None:
    gains = np.array([0.5, -0.1, 0.4, 0.3, -0.2, 0.6, 0.1, 0.25])
    found = compare_means(np.zeros(8), gains, draws=100_000)
    signs = np.array(list(itertools.product([1, -1], repeat=8)))
    exact = np.mean(np.abs((signs * gains).mean(1)) >= gains.mean() - 1e-12)
    assert found.value == pytest.approx(gains.mean())
    assert found.p_value == pytest.approx(exact, abs=0.003)


def with_student(level: float, n: int) -> float:
    """The level at which normal quantiles equal Student's quantiles of ``level`` for n items."""
    return float(2 * stats.norm.cdf(stats.t.ppf((1 + level) / 2, n - 1) * (n / (n - 1)) ** 0.5) - 1)


@pytest.mark.parametrize("n", [15, 80])
def test_an_interval_of_a_mean_is_the_outer_of_scipys_bca_and_student(n: int) -> None:
    values = np.random.default_rng(1).exponential(size=n)
    level = with_student(0.9, n)
    bca = stats.bootstrap(
        (values,), np.mean, n_resamples=50_000, confidence_level=level, rng=np.random.default_rng(2)
    ).confidence_interval
    student = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    low, high = mean_interval(values, draws=50_000, level=0.9)
    assert low == pytest.approx(min(bca.low, student.low), abs=0.02)
    assert high == pytest.approx(max(bca.high, student.high), abs=0.02)
    assert low == pytest.approx(student.low)
    assert high > student.high + 0.02


def test_values_without_spread_are_their_own_interval() -> None:
    assert mean_interval([0.5]) == (0.5, 0.5)
    assert mean_interval([0.25] * 20) == (0.25, 0.25)


def test_an_interval_stays_within_what_the_measure_can_be() -> None:
    low, high = mean_interval([0, 1])
    assert np.isfinite([low, high]).all()
    assert low < 0 < 1 < high
    assert mean_interval([0, 1], within=(0, 1)) == (0, 1)


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
    with pytest.raises(ValueError, match="All values of one argument are equal"):
        compare_correlations([1, 1], [1, 2], [1, 2])


def like_ndcg(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Two equally good systems: many equal queries, many values of 0 or 1, as in nDCG@10."""
    values = rng.choice(NDCG, (2, n), p=NDCG_SHARES)
    values[1] = np.where(rng.random(n) < 0.5, values[0], values[1])
    return values[0], values[1]


def equal_means(rng: np.random.Generator, n: int, draws: int, seed: int) -> Difference:
    return compare_means(*like_ndcg(rng, n), draws=draws, seed=seed)


def equal_correlations(rng: np.random.Generator, n: int, draws: int, seed: int) -> Difference:
    gold = np.round(rng.random(n) * 20) / 4  # 0 to 5 in quarters
    shared, first, second = rng.normal(size=(3, n))
    return compare_correlations(
        gold + shared + first, 0.1 * (gold + shared + second), gold, draws=draws, seed=seed
    )


def measured(first: str, second: str, collection: str = "scifact") -> Compare:
    """Two systems of different quality: queries are drawn from a committed evaluation."""
    sides = []
    for system in (first, second):
        record = json.loads((REPORTS / system / f"{collection}.json").read_text())
        sides.append(record["per_item"]["nDCG@10"])
    a, b = (np.array([side[query] for query in sides[0]]) for side in sides)

    def compare(rng: np.random.Generator, n: int, draws: int, seed: int) -> Difference:
        """Values minus the true difference, so that the interval should cover 0."""
        at = rng.integers(0, len(a), n)
        return compare_means(a[at], b[at] - (b - a).mean(), draws=draws, seed=seed)

    return compare


def one_run(rng: np.random.Generator, n: int, draws: int, seed: int) -> Difference:
    """Error of a run's mean: the mean of a sample of queries minus the true mean."""
    values = rng.choice(NDCG, n, p=NDCG_SHARES) - np.dot(NDCG, NDCG_SHARES)
    return Difference(values.mean(), *mean_interval(values, draws=draws, seed=seed), p_value=1.0)


def outcomes(compare: Compare, *, trials: int, n: int, draws: int) -> tuple[float, float]:
    """Share of trials with p < 0.05, and with an interval that covers 0."""
    rng = np.random.default_rng(11)
    found = [compare(rng, n, draws, trial) for trial in range(trials)]
    p = float(np.mean([each.p_value < 0.05 for each in found]))
    return p, float(np.mean([each.low <= 0 <= each.high for each in found]))


@pytest.mark.thorough
@pytest.mark.parametrize("compare", [equal_means, equal_correlations])
def test_identical_systems_differ_in_5_percent_of_trials(compare: Compare) -> None:
    by_test, covered = outcomes(compare, trials=1_500, n=50, draws=300)
    assert by_test == pytest.approx(0.05, abs=0.015)
    assert covered == pytest.approx(0.95, abs=0.02)


@pytest.mark.thorough
def test_intervals_of_few_skewed_values_are_long_enough() -> None:
    """A percentile interval covers the true value in 0.91 of the trials."""
    assert outcomes(one_run, trials=1_500, n=20, draws=300)[1] > 0.945
    assert outcomes(measured("dense", "hybrid"), trials=1_500, n=20, draws=300)[1] > 0.93


STUDIES: dict[str, tuple[Compare, float]] = {  # with the share of items that tell nothing
    "equal systems, means": (equal_means, 0.64),
    "equal systems, correlations": (equal_correlations, 0.0),
    "mean of one run": (one_run, 0.0),
    "hybrid less dense on SciFact, 65 % of queries equal": (measured("dense", "hybrid"), 0.65),
    "hybrid less lexical on SciFact, 69 % of queries equal": (measured("lexical", "hybrid"), 0.69),
    "reranked less hybrid on SciFact, 77 % of queries equal": (
        measured("hybrid", "reranked"),
        0.77,
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", STUDIES)
def test_intervals_cover_and_identical_systems_differ_in_5_percent_of_many_trials(
    name: str,
) -> None:
    """With fewer than 7 expected differing queries, no interval has its nominal coverage."""
    found: dict[str, dict[str, float]] = {}
    compare, share_equal = STUDIES[name]
    for n in (20, 30, 76, 300):
        trials = 1_500 if compare is equal_correlations else 5_000
        by_test, covered = outcomes(compare, trials=trials, n=n, draws=500)
        figure = {"trials": trials, "covered by the 95 % interval": covered}
        if name.startswith("equal"):
            figure["p below 0.05"] = by_test
            assert by_test < 0.065
            assert n < 76 or by_test > 0.035  # of few items, equal ones make the test cautious
        assert covered >= 0.94 or n * (1 - share_equal) < 7, (name, n, covered)
        found[f"{name}, {n} items"] = figure
    figures = json.loads(RESULT.read_text()) | found
    RESULT.write_text(json.dumps(figures, indent=1) + "\n")


def test_exchanges_that_make_all_values_equal_are_left_out() -> None:
    """Of the four exchanges of two items, the two of one item give constant ranks.

    The correlations are 1 and -1; the other two exchanges give the differences -2 and 2.
    """
    for kind in ("spearman", "pearson"):
        found = compare_correlations([1, 2], [2, 1], [1, 2], kind=kind, draws=200)
        assert (found.value, found.p_value) == (-2, 1)


def test_a_resample_of_equal_values_has_no_correlation() -> None:
    x, y = np.array([0.1, 0.3, 0.7]), np.array([0.2, 0.9, 0.1])
    weights = np.array([[3.0, 0, 0], [0, 3.0, 0], [0, 0, 3.0], [1.0, 1.0, 1.0]])
    found = weighted_pearson(x, y, weights)  # three times one item; 3 * 0.1 / 3 is not 0.1
    assert np.isnan(found[:3]).all()
    assert found[3] == pytest.approx(stats.pearsonr(x, y).statistic)
