"""Divide the items of a run into slices by features, and find slices where a model is worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbert_search.evaluate.metrics.significance import DRAWS, LEVEL, draw_blocks, mean_interval

GROUPS = 3  # largest number of slices by one feature
Features = Mapping[str, float | None]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorSlice:
    """The items for which a feature lies in one range."""

    feature: str  # name, such as words in the query
    low: float  # lowest value of the feature in the slice
    high: float  # highest value of the feature in the slice
    items: int  # number of items
    mean: float  # of the metric
    # 95 % interval of the mean; None if it would have the width 0, as for one item or equal values,
    # which do not show how much the metric varies.
    interval: tuple[float, float] | None
    difference: float | None  # ``mean`` minus that of the other items with the feature, if any
    # The intervals of all slices are simultaneous 95 % intervals (max T).
    difference_interval: tuple[float, float] | None
    worse: bool  # the whole interval means that the model is worse than on the other items

    @property
    def range(self) -> str:
        """The range of the feature, as text."""
        return (
            shown(self.low) if self.low == self.high else f"{shown(self.low)} to {shown(self.high)}"
        )


def shown(value: float) -> str:
    """Format a value of a feature: a number of words or documents, or a share."""
    return f"{value:,.0f}" if value == int(value) else f"{value:.2f}"


def groups_of(values: Sequence[float | None], groups: int = GROUPS) -> NDArray[np.int64]:
    """Divide items into groups of about equal size by a feature; equal values stay together.

    The result has the group of each item, from 0 in ascending order of the feature; -1 for an item
    without it. If there are fewer different values than ``groups``, there are fewer groups.
    """
    array = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    known = np.sort(array[~np.isnan(array)])
    found = np.full(len(array), -1, dtype=np.int64)
    if not len(known):
        return found
    # The highest value of each group except the last, if all groups had equal sizes.
    ends = [known[-(-len(known) * group // groups) - 1] for group in range(1, groups)]
    has = ~np.isnan(array)
    found[has] = np.searchsorted(np.array(ends), array[has], side="left")
    numbers = np.unique(found[has])
    found[has] = np.searchsorted(numbers, found[has])
    return found


def slice_items(
    values: Sequence[float],
    features: Sequence[Features],
    *,
    higher_is_better: bool,
    within: tuple[float, float] = (0.0, 1.0),
    draws: int = DRAWS,
    seed: int = 0,
) -> list[ErrorSlice]:
    """Compare the mean metric of each slice with the mean metric of the other items.

    ``features`` has the same names for all items; ``within`` is the range of the metric. The slices
    are in the order of the features, then by ascending value. A feature that has one value for all
    items gives one slice, without a difference.
    """
    metric = np.asarray(values, dtype=np.float64)
    found: list[tuple[str, Floats, NDArray[np.bool_], NDArray[np.bool_]]] = []
    for name in features[0] if features else ():
        column = [each[name] for each in features]
        group, known = groups_of(column), [np.nan if v is None else v for v in column]
        for number in range(group.max() + 1):
            found.append((name, np.array(known), group == number, (group != number) & (group >= 0)))
    pairs = [(inside, outside) for *_, inside, outside in found]
    intervals = difference_intervals(metric, pairs, within=within, draws=draws, seed=seed)
    sign = 1.0 if higher_is_better else -1.0
    slices = []
    for (name, column_values, inside, outside), ends in zip(found, intervals, strict=True):
        mean = float(metric[inside].mean())
        interval = mean_interval(metric[inside], within=within, draws=draws, seed=seed)
        slices.append(
            ErrorSlice(
                feature=name,
                low=float(column_values[inside].min()),
                high=float(column_values[inside].max()),
                items=int(inside.sum()),
                mean=mean,
                interval=interval if interval[0] < interval[1] else None,
                difference=mean - float(metric[outside].mean()) if outside.any() else None,
                difference_interval=ends,
                worse=ends is not None and max(sign * ends[0], sign * ends[1]) < 0,
            )
        )
    return slices


def difference_intervals(
    values: Floats,
    pairs: Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]],
    *,
    within: tuple[float, float] = (-math.inf, math.inf),
    draws: int = DRAWS,
    seed: int = 0,
) -> list[tuple[float, float] | None]:
    """Simultaneous 95 % intervals of differences between the means of two parts of the items.

    The values are shuffled among the items. In each shuffle, each difference is divided by its
    standard error (Welch's), and the largest absolute ratio is taken. The 95 % quantile of these
    maxima is the half width of each interval, in standard errors. If the metric does not depend on
    the parts, any interval leaves out 0 with a probability of at most 5 %, for any number of items
    and distribution.

    A pair has masks, (n,), of its two parts; its interval is None if one of them is empty. The
    intervals are clipped to the differences that are possible if values are ``within`` a range. For
    a part of one item, the variance of the other part is used. If both parts have one item, the
    interval covers all possible differences.

    Source: Westfall & Young 1993, Resampling-based multiple testing (max T); Chung & Romano 2013,
    Exact and asymptotically robust permutation tests (arXiv:1304.5939).
    """
    compared = [pair for pair in pairs if pair[0].any() and pair[1].any()]
    if not compared:
        return [None] * len(pairs)
    parts = np.array([part for pair in compared for part in pair], dtype=np.float64).T
    shifted = values - values[0]  # exactly 0 if all values are equal
    rng, blocks = np.random.default_rng(seed), []
    for size in draw_blocks(len(values), draws):
        block = np.tile(shifted, (size, 1))
        differences, errors = _differences(rng.permuted(block, axis=1), parts)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = np.nan_to_num(np.abs(differences) / errors, nan=0.0, posinf=math.inf)
        blocks.append(ratios.max(axis=1))
    largest = np.sort(np.concatenate(blocks))
    # Rounding makes equal ratios differ a little; the factor makes them count as equal.
    reach = largest[min(math.ceil(LEVEL * (draws + 1)), draws) - 1] * (1 + 1e-9)
    differences, errors = _differences(shifted[None], parts)
    with np.errstate(invalid="ignore"):
        half = np.nan_to_num(reach * errors[0], nan=math.inf, posinf=math.inf)
    most = within[1] - within[0]
    low, high = np.clip([differences[0] - half, differences[0] + half], -most, most).tolist()
    ends = iter(zip(low, high, strict=True))
    return [next(ends) if pair[0].any() and pair[1].any() else None for pair in pairs]


def _differences(values: Floats, parts: Floats) -> tuple[Floats, Floats]:
    """Differences of means and their standard errors, (draws, differences) each.

    ``values`` are (draws, n). ``parts`` are (n, 2 * differences), 1 for an item of a part, else 0;
    the two parts of a difference are neighbouring columns.
    """
    counts = parts.sum(axis=0)
    sums, squares = values @ parts, values**2 @ parts
    means, scale = sums / counts, np.abs(values).max()
    with np.errstate(invalid="ignore", divide="ignore"):
        variances = (squares - sums * means) / (counts - 1)  # NaN for a part of one item
    variances[variances < 1e-12 * scale**2] = 0.0  # a rounding error
    first, second = variances[:, 0::2], variances[:, 1::2]
    first, second = (
        np.where(np.isnan(first), second, first),
        np.where(np.isnan(second), first, second),
    )
    differences = means[:, 0::2] - means[:, 1::2]
    differences[np.abs(differences) < 1e-12 * scale] = 0.0  # a rounding error
    return differences, np.sqrt(first / counts[0::2] + second / counts[1::2])
