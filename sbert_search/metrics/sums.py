"""Intervals and tests of metrics that are functions of sums over items, such as F1.

F1 and Matthews correlation are no means over items. They are functions of counts, and the counts
are sums over items, so a bootstrap resamples the items and adds up their counts. The randomisation
test chooses items at random and swaps the counts of the two systems on these items;
`significance.compare_means` swaps their values in the same way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.metrics.significance import (
    DRAWS,
    LEVEL,
    Difference,
    draw_counts,
    percentiles,
    resampled,
    swaps,
    two_sided,
)

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Maps sums over items, (..., sums), to values of a metric, (...)."""


def interval_of_sums(
    counts: ArrayLike,
    statistic: Statistic,
    *,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a metric over items.

    Args:
        counts: What each item adds to the sums, (n, sums), n at least 1.
        statistic: The metric, as a function of the sums.
        draws: Number of resamples.
        level: Confidence level.
        seed: Seed of the bootstrap.
    """
    table, rng = np.asarray(counts, dtype=np.float64), np.random.default_rng(seed)
    values = [statistic(draw_counts(picks) @ table) for picks in resampled(rng, len(table), draws)]
    return percentiles(np.concatenate(values), level)


def compare_sums(
    first: ArrayLike,
    second: ArrayLike,
    statistic: Statistic,
    *,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> Difference:
    """Compare a metric of two systems on the same items.

    Args:
        first: What each item adds to the sums of the first system, (n, sums).
        second: The same for the second system, in the same order of items.
        statistic: The metric, as a function of the sums.
        draws: Number of resamples of the bootstrap, and of random exchanges of the test.
        level: Confidence level of the interval.
        seed: Seed of bootstrap and test.

    Raises:
        ValueError: ``first`` and ``second`` have different shapes.
    """
    a, b = (np.asarray(counts, dtype=np.float64) for counts in (first, second))
    if a.shape != b.shape:
        raise ValueError(f"Shapes {a.shape} and {b.shape} are not those of the same items.")
    rng, n = np.random.default_rng(seed), len(a)
    gains = []
    for picks in resampled(rng, n, draws):
        weights = draw_counts(picks)
        gains.append(statistic(weights @ b) - statistic(weights @ a))
    low, high = percentiles(np.concatenate(gains), level)
    null = []
    for swap in swaps(rng, n, draws):
        moved = swap @ (b - a)
        null.append(statistic(b.sum(0) - moved) - statistic(a.sum(0) + moved))
    value = float(statistic(b.sum(0)) - statistic(a.sum(0)))
    return Difference(value, low, high, two_sided(np.concatenate(null), value))
