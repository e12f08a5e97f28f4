"""Is one system better than another on the same items, or does it only look so?

Two systems are judged on the same queries or pairs of texts. A bootstrap over the items says how
far the difference may move with other items; a randomisation test says how often a difference as
large would come about if the two were exchangeable; Holm's correction pays for looking at several
figures.

Of few items, a percentile interval of a mean is too short; that of a correlation is not. An
interval of a mean therefore joins two: Student's, too short on one side where values are skewed,
and the bias-corrected and accelerated bootstrap (BCa), too short where most values are equal.
``tests/results/significance.json`` has what they cover.

Source: Smucker, Allan & Carterette 2007, A comparison of statistical significance tests for
information retrieval evaluation; Efron & Tibshirani 1993, An introduction to the bootstrap,
section 14.3 (BCa); Hesterberg 2015, What teachers should know about the bootstrap
(arXiv:1411.5279), on expanded percentile intervals (Student's quantiles); Holm 1979, A simple
sequentially rejective multiple test procedure.
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

DRAWS = 10_000
LEVEL = 0.95
_CELLS = 1 << 21  # of one block of draws x items: 16 MiB of float64


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much a second system is above a first one.

    Attributes:
        value: Second less first.
        low: Lower end of the bootstrap interval.
        high: Its upper end.
        p_value: Of the two-sided randomisation test, not corrected.
    """

    value: float
    low: float
    high: float
    p_value: float


def mean_interval(
    values: ArrayLike,
    *,
    within: tuple[float, float] = (-math.inf, math.inf),
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of a mean over items, such as an average over queries.

    Each end is the outer one of Student's interval and of the BCa bootstrap with Student's
    quantiles, so it covers the mean at least as often as either. One value is its own interval.

    Args:
        values: One of each item, (n,).
        within: What the measure lies between; the interval does not leave it.
        draws: Resamples of the bootstrap.
        level: Of the interval.
        seed: Of the bootstrap.

    Raises:
        ValueError: There are no values, or they are not one list of finite numbers.
    """
    (checked,) = _checked(values)
    mean = float(checked.mean())
    spread = checked - mean
    squares = float(spread @ spread)
    if len(checked) == 1 or squares == 0:
        return mean, mean
    rng = np.random.default_rng(seed)
    means = [checked[picks].mean(axis=1) for picks in _resampled(rng, len(checked), draws)]
    skew = float((spread**3).sum()) / (6 * squares**1.5)  # acceleration, and of a mean the bias too
    student = _student(level, len(checked))
    reach = student * math.sqrt(len(checked) / (len(checked) - 1))
    low, high = np.quantile(np.concatenate(means), [_bca(-reach, skew), _bca(reach, skew)])
    half = student * math.sqrt(squares / (len(checked) - 1) / len(checked))
    low, high = min(float(low), mean - half), max(float(high), mean + half)
    return max(low, within[0]), min(high, within[1])


def compare_means(
    first: ArrayLike,
    second: ArrayLike,
    *,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> Difference:
    """Compare the means of two systems' values on the same items.

    Args:
        first: Value of each item, such as nDCG@10 of each query, (n,).
        second: Of the same items in the same order, (n,).
        draws: Resamples of the bootstrap, and sign flips of the test.
        level: Of the interval.
        seed: Of both.

    Raises:
        ValueError: The two are not lists of finite numbers of one length of at least 1.
    """
    a, b = _checked(first, second)
    gains, rng = b - a, np.random.default_rng(seed)
    low, high = mean_interval(gains, draws=draws, level=level, seed=seed)
    flipped = [gains.sum() - 2 * (swap @ gains) for swap in _swaps(rng, len(gains), draws)]
    null = np.concatenate(flipped) / len(gains)
    value = float(gains.mean())
    return Difference(value, low, high, _two_sided(null, value))


def compare_correlations(
    first: ArrayLike,
    second: ArrayLike,
    gold: ArrayLike,
    *,
    kind: Correlation = "spearman",
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> Difference:
    """Compare how two systems' scores of the same items correlate with gold scores.

    The bootstrap ranks every resample anew. The test exchanges the systems' ranks (for Pearson,
    their standardised scores) item by item, since scores of two systems have no common scale.

    Args:
        first: Score of each item, such as the cosine of a pair of texts, (n,).
        second: Of the same items in the same order, (n,).
        gold: What both should agree with, (n,).
        kind: Which correlation.
        draws: Resamples of the bootstrap, and exchanges of the test.
        level: Of the interval.
        seed: Of both.

    Raises:
        ValueError: The three are not lists of finite numbers of one length of at least 2, or all
            values of one are equal, so that no correlation is defined.
    """
    checked = _checked(first, second, gold)
    if any((values == values[0]).all() for values in checked):
        raise ValueError("All values of one side are equal; no correlation with them is defined.")
    prepare: Callable[[Floats], _Prepared] = _Ranked if kind == "spearman" else _AsTheyAre
    sides = [prepare(values) for values in checked]
    n, rng = len(checked[0]), np.random.default_rng(seed)
    resampled = []
    for picks in _resampled(rng, n, draws):
        counts = _counts(picks)
        a, b, g = (side.weighted(counts) for side in sides)
        resampled.append(_weighted_pearson(b, g, counts) - _weighted_pearson(a, g, counts))
    low, high = _percentiles(np.concatenate(resampled), level)
    a, b, g = (_standardised(side.whole) for side in sides)
    null = np.concatenate([_exchanged(a, b, g, swap) for swap in _swaps(rng, n, draws)])
    value = float((b - a) @ g / n)
    return Difference(value, low, high, _two_sided(null, value))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number; one below alpha then keeps the error of the family there.

    The smallest of m is multiplied by m, the next by m - 1 and so on; none falls below one before
    it, or rises above 1.
    """
    order = np.argsort(p_values, kind="stable")
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order.tolist()):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected


class _AsTheyAre:
    """Values that a resample takes as they are."""

    def __init__(self, values: Floats) -> None:
        self.whole = values

    def weighted(self, counts: Floats) -> Floats:
        """Give the values for resamples, (1, n)."""
        return self.whole[None]


class _Ranked:
    """Values that every resample ranks anew; equal ones share the mean of their ranks."""

    def __init__(self, values: Floats) -> None:
        self._order = np.argsort(values, kind="stable")
        changes = np.diff(values[self._order]) > 0
        self._ends = np.append(np.flatnonzero(changes), len(values) - 1)  # last item of each tie
        self._tie = np.concatenate([[0], np.cumsum(changes)])
        self.whole = self.weighted(np.ones((1, len(values))))[0]

    def weighted(self, counts: Floats) -> Floats:
        """Rank resamples given by how often each item is in them, (draws, n); up to a constant."""
        upto = np.cumsum(counts[:, self._order], axis=1)[:, self._ends]
        below = np.pad(upto[:, :-1], ((0, 0), (1, 0)))
        ranks = np.empty_like(counts)
        ranks[:, self._order] = ((below + upto) / 2)[:, self._tie]
        return ranks


_Prepared = _AsTheyAre | _Ranked


def _checked(*sides: ArrayLike) -> list[Floats]:
    arrays = [np.asarray(side, dtype=np.float64) for side in sides]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1 or arrays[0].ndim != 1 or not arrays[0].size:
        shown = " and ".join(str(array.shape) for array in arrays)
        raise ValueError(f"Shapes {shown} are not lists of one length of at least 1.")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("A value is not finite; differences are not defined.")
    return arrays


def _blocks(n: int, draws: int) -> Iterator[int]:
    size = max(1, _CELLS // n)
    for start in range(0, draws, size):
        yield min(size, draws - start)


def _resampled(rng: np.random.Generator, n: int, draws: int) -> Iterator[NDArray[np.int64]]:
    """Draw items with replacement, (block, n) at a time."""
    for block in _blocks(n, draws):
        yield rng.integers(0, n, (block, n))


def _swaps(rng: np.random.Generator, n: int, draws: int) -> Iterator[Floats]:
    """Draw which items change sides, 0 or 1, (block, n) at a time."""
    for block in _blocks(n, draws):
        bits = np.unpackbits(rng.integers(0, 256, (block, -(-n // 8)), dtype=np.uint8), axis=1)
        yield bits[:, :n].astype(np.float64)


def _counts(picks: NDArray[np.int64]) -> Floats:
    """Count how often each item was drawn, (block, n)."""
    block, n = picks.shape
    cells = (picks + np.arange(block)[:, None] * n).ravel()
    return np.bincount(cells, minlength=block * n).reshape(block, n).astype(np.float64)


def _weighted_pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Correlate along the last axis; nan where a resample holds one value alone."""
    total = weights.sum(axis=1, keepdims=True)
    x = x - (weights * x).sum(axis=1, keepdims=True) / total
    y = y - (weights * y).sum(axis=1, keepdims=True) / total
    covariance, x_var, y_var = ((weights * p).sum(axis=1) for p in (x * y, x * x, y * y))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(covariance / np.sqrt(x_var * y_var))


def _exchanged(a: Floats, b: Floats, gold: Floats, swap: Floats) -> Floats:
    """Correlate both sides with gold after items changed sides; second less first, (block,).

    What a change of sides does to the sums of a correlation is linear in who changed.
    """
    n, moved = len(a), b - a
    shift, square, product = (swap @ part for part in (moved, b * b - a * a, moved * gold))

    def correlation(side: Floats, sign: int) -> Floats:
        mean = sign * shift / n
        spread = np.maximum((side @ side + sign * square) / n - mean**2, 0)
        return np.asarray((side @ gold + sign * product) / n / np.sqrt(spread))

    return correlation(b, -1) - correlation(a, 1)


def _standardised(values: Floats) -> Floats:
    centred = values - values.mean()
    return np.asarray(centred / np.sqrt((centred**2).mean()))


def _student(level: float, n: int) -> float:
    """Return Student's quantile: how many standard errors an interval of n items goes each way."""
    from scipy.special import stdtrit  # the rest of the package can do without scipy

    return float(stdtrit(n - 1, (1 + level) / 2))


def _bca(normal: float, skew: float) -> float:
    """Return the share of resampled means below an end of the BCa interval.

    Args:
        normal: Where the end is for a normal mean, in standard errors.
        skew: The acceleration, which for a mean is the bias correction as well.
    """
    moved = skew + normal
    return NormalDist().cdf(skew + moved / max(1 - skew * moved, 0.01))


def _percentiles(draws: Floats, level: float) -> tuple[float, float]:
    low, high = np.nanquantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _two_sided(null: Floats, value: float) -> float:
    """Share of draws at least as far from 0, what was seen being one of them."""
    slack = 1e-12 * max(1.0, float(np.abs(null).max()))  # sums of the same terms in another order
    return float((1 + np.count_nonzero(np.abs(null) >= abs(value) - slack)) / (1 + len(null)))
