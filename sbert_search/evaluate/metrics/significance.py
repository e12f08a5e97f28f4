"""Confidence intervals and significance tests of the difference between two systems.

Both systems are evaluated on the same items: queries or pairs of texts. A bootstrap over the items
gives a confidence interval of the difference. A randomisation test gives the p-value: the
probability of a difference at least as large if the systems were exchangeable.

For few items, the percentile bootstrap interval of a mean is too short; that of a correlation is
not. The interval of a mean is therefore the union of Student's, which is too short on one side if
values are skewed, and that of the bias-corrected and accelerated bootstrap (BCa), which is too
short if most values are equal. ``tests/results/significance.json`` has the measured coverage.

Source: Smucker, Allan & Carterette 2007, A comparison of statistical significance tests for
information retrieval evaluation; Efron & Tibshirani 1993, An introduction to the bootstrap, section
14.3 (BCa); Hesterberg 2015, What teachers should know about the bootstrap (arXiv:1411.5279), on
expanded percentile intervals (Student's quantiles); Holm 1979, A simple sequentially rejective
multiple test procedure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Correlation = Literal["spearman", "pearson"]

DRAWS = 10_000  # resamples of a bootstrap, and random exchanges of a test
LEVEL = 0.95  # confidence level of the intervals
_CELLS = 1 << 21  # draws x items that are computed at a time: 16 MiB of float64


@dataclass(frozen=True, slots=True)
class Difference:
    """The second system minus the first, with the confidence interval."""

    value: float
    low: float
    high: float
    p_value: float  # of the two-sided randomisation test, not corrected


def mean_interval(
    values: ArrayLike,
    *,
    within: tuple[float, float] = (-math.inf, math.inf),
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[float, float]:
    """Confidence interval of a mean over items, (n,), clipped to ``within``.

    For a single value, or if all values are equal, both ends are the mean.
    """
    (checked,) = _finite_lists(values)
    if (checked == checked[0]).all():  # their mean can differ from them by a rounding error
        return float(checked[0]), float(checked[0])
    mean = float(checked.mean())
    deviations = checked - mean
    squares = float(deviations @ deviations)
    rng = np.random.default_rng(seed)
    means = [checked[picks].mean(axis=1) for picks in resampled(rng, len(checked), draws)]
    skew = float((deviations**3).sum()) / (6 * squares**1.5)  # BCa's acceleration and bias terms
    student = _student(level, len(checked))
    reach = student * math.sqrt(len(checked) / (len(checked) - 1))
    low, high = np.quantile(np.concatenate(means), [_bca(-reach, skew), _bca(reach, skew)])
    half = student * math.sqrt(squares / (len(checked) - 1) / len(checked))
    low, high = min(float(low), mean - half), max(float(high), mean + half)
    return max(low, within[0]), min(high, within[1])


def correlation_interval(
    predicted: ArrayLike, gold: ArrayLike, *, kind: Correlation, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the correlation of scores with gold scores, (n,) each."""
    checked = _finite_lists(predicted, gold)
    x, y = (_Ranked(values) if kind == "spearman" else _Unranked(values) for values in checked)
    rng, found = np.random.default_rng(seed), []
    for picks in resampled(rng, len(checked[0]), DRAWS):
        counts = draw_counts(picks)
        found.append(weighted_pearson(x.weighted(counts), y.weighted(counts), counts))
    return percentiles(np.concatenate(found))


def compare_means(
    first: ArrayLike, second: ArrayLike, *, draws: int = DRAWS, seed: int = 0
) -> Difference:
    """Compare the means of two systems' values of the same items, in the same order, (n,)."""
    a, b = _finite_lists(first, second)
    gains, rng = b - a, np.random.default_rng(seed)
    low, high = mean_interval(gains, draws=draws, seed=seed)
    flipped = [gains.sum() - 2 * (swap @ gains) for swap in swaps(rng, len(gains), draws)]
    null = np.concatenate(flipped) / len(gains)
    value = float(gains.mean())
    return Difference(value, low, high, two_sided(null, value))


def compare_correlations(
    first: ArrayLike,
    second: ArrayLike,
    gold: ArrayLike,
    *,
    kind: Correlation = "spearman",
    draws: int = DRAWS,
    seed: int = 0,
) -> Difference:
    """Compare the correlations of two systems' scores with gold scores of the same items, (n,).

    For Spearman's correlation, the bootstrap ranks the values of every resample again. The scores
    of two systems have no common scale. So the test exchanges the ranks that the systems give to an
    item (for Pearson's correlation, the standardised scores).
    """
    checked = _finite_lists(first, second, gold)
    if any((values == values[0]).all() for values in checked):
        raise ValueError("All values of one argument are equal; the correlation is undefined.")
    prepare: Callable[[Floats], _Prepared] = _Ranked if kind == "spearman" else _Unranked
    prepared = [prepare(values) for values in checked]
    n, rng = len(checked[0]), np.random.default_rng(seed)
    gains = []
    for picks in resampled(rng, n, draws):
        counts = draw_counts(picks)
        a, b, g = (values.weighted(counts) for values in prepared)
        gains.append(weighted_pearson(b, g, counts) - weighted_pearson(a, g, counts))
    low, high = percentiles(np.concatenate(gains))
    a, b, g = (_standardise(values.whole) for values in prepared)
    null = np.concatenate([_exchange(a, b, g, swap) for swap in swaps(rng, n, draws)])
    null = null[~np.isnan(null)]  # an exchange can make all values of a system equal
    value = float((b - a) @ g / n)
    return Difference(value, low, high, two_sided(null, value))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values, in their order, by Holm's method (controls the family-wise error rate).

    The smallest of m p-values is multiplied by m, the next by m - 1 and so on. A product is at most
    1 and at least the one before it.
    """
    order = np.argsort(p_values, kind="stable")
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order.tolist()):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


class _Unranked:
    """Values that are used in every resample as they are (Pearson's correlation)."""

    def __init__(self, values: Floats) -> None:
        self.whole = values

    def weighted(self, counts: Floats) -> Floats:
        return self.whole[None]


class _Ranked:
    """Values that are ranked in every resample (Spearman's correlation); ties share a rank."""

    def __init__(self, values: Floats) -> None:
        self._order = np.argsort(values, kind="stable")
        changes = np.diff(values[self._order]) > 0
        self._ends = np.append(np.flatnonzero(changes), len(values) - 1)  # last item of each tie
        self._tie = np.concatenate([[0], np.cumsum(changes)])
        self.whole = self.weighted(np.ones((1, len(values))))[0]

    def weighted(self, counts: Floats) -> Floats:
        """Return ranks in each resample, plus a constant: no correlation needs it, (draws, n)."""
        upto = np.cumsum(counts[:, self._order], axis=1)[:, self._ends]
        below = np.pad(upto[:, :-1], ((0, 0), (1, 0)))
        ranks = np.empty_like(counts)
        ranks[:, self._order] = ((below + upto) / 2)[:, self._tie]
        return ranks


_Prepared = _Unranked | _Ranked


def equal_lists(*lists: ArrayLike, fewest: int = 0) -> list[Floats]:
    """Return lists of equal length, at least ``fewest``, as float64 (n,) each."""
    arrays = [np.asarray(values, dtype=np.float64) for values in lists]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1 or arrays[0].ndim != 1 or len(arrays[0]) < fewest:
        shown = " and ".join(str(array.shape) for array in arrays)
        raise ValueError(f"Shapes {shown} are not lists of one length of at least {fewest}.")
    return arrays


def _finite_lists(*lists: ArrayLike) -> list[Floats]:
    arrays = equal_lists(*lists, fewest=1)
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("A value is not finite; differences are undefined.")
    return arrays


def draw_blocks(n: int, draws: int) -> Iterator[int]:
    """Yield the numbers of draws, of n items each, that are computed together."""
    size = max(1, _CELLS // n)
    for start in range(0, draws, size):
        yield min(size, draws - start)


def resampled(rng: np.random.Generator, n: int, draws: int) -> Iterator[NDArray[np.int64]]:
    """Yield blocks of resamples: indices of items drawn with replacement, (block, n)."""
    for block in draw_blocks(n, draws):
        yield rng.integers(0, n, (block, n))


def swaps(rng: np.random.Generator, n: int, draws: int) -> Iterator[Floats]:
    """Yield blocks of exchanges: 1 where the systems exchange an item, else 0, (block, n)."""
    for block in draw_blocks(n, draws):
        bits = np.unpackbits(rng.integers(0, 256, (block, -(-n // 8)), dtype=np.uint8), axis=1)
        yield bits[:, :n].astype(np.float64)


def draw_counts(picks: NDArray[np.int64]) -> Floats:
    """Count how often each item was drawn, (block, n)."""
    block, n = picks.shape
    cells = (picks + np.arange(block)[:, None] * n).ravel()
    return np.bincount(cells, minlength=block * n).reshape(block, n).astype(np.float64)


def weighted_pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Weighted correlation along the last axis; NaN if all values of a resample are equal."""
    total = weights.sum(axis=1, keepdims=True)
    x_square, y_square = ((weights * p * p).sum(axis=1) for p in (x, y))
    x = x - (weights * x).sum(axis=1, keepdims=True) / total
    y = y - (weights * y).sum(axis=1, keepdims=True) / total
    covariance, x_var, y_var = ((weights * p).sum(axis=1) for p in (x * y, x * x, y * y))
    # The mean of equal values may differ from them by rounding, and their variance from 0.
    x_var[x_var <= 1e-14 * x_square] = np.nan
    y_var[y_var <= 1e-14 * y_square] = np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(covariance / np.sqrt(x_var * y_var))


def _exchange(a: Floats, b: Floats, gold: Floats, swap: Floats) -> Floats:
    """Difference of the correlations after an exchange of items, (block,); NaN if undefined."""
    # The sums in a correlation are linear in ``swap``, so one product gives a sum for all draws.
    n, moved = len(a), b - a
    shift, square, product = (swap @ part for part in (moved, b * b - a * a, moved * gold))

    def correlation(scores: Floats, sign: int) -> Floats:
        mean = sign * shift / n
        variance = np.maximum((scores @ scores + sign * square) / n - mean**2, 0)
        variance[variance < 1e-12] = np.nan  # 0 up to rounding; before the exchange, it is 1
        return np.asarray((scores @ gold + sign * product) / n / np.sqrt(variance))

    return correlation(b, -1) - correlation(a, 1)


def _standardise(values: Floats) -> Floats:
    centred = values - values.mean()
    return np.asarray(centred / np.sqrt((centred**2).mean()))


def _student(level: float, n: int) -> float:
    from scipy.special import stdtrit  # scipy is optional; only evaluation needs it

    return float(stdtrit(n - 1, (1 + level) / 2))


def _bca(normal: float, skew: float) -> float:
    """Share of resampled means below an end of the BCa interval.

    ``normal`` is the end for a normally distributed mean, in standard errors; ``skew`` is the
    acceleration, which for a mean is also the bias correction.
    """
    shifted = skew + normal
    # For strongly skewed values the denominator can reach 0; 0.01 keeps the end finite.
    return NormalDist().cdf(skew + shifted / max(1 - skew * shifted, 0.01))


def percentiles(draws: Floats) -> tuple[float, float]:
    """Return the ends of the percentile interval of a bootstrap; NaN draws are left out."""
    low, high = np.nanquantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def two_sided(null: Floats, value: float) -> float:
    """Return the two-sided p-value: the share of draws at least as far from 0 as ``value``.

    The observed ``value`` itself counts as one of the draws.
    """
    # Sums of the same terms in another order differ by rounding; the slack counts them as equal.
    slack = 1e-12 * max(1.0, float(np.abs(null).max(initial=0)))
    return float((1 + np.count_nonzero(np.abs(null) >= abs(value) - slack)) / (1 + len(null)))
