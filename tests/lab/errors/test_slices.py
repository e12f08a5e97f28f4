from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.evaluate.metrics.significance import mean_interval
from sbert_search.lab.errors.slices import (
    Features,
    difference_intervals,
    groups_of,
    shown,
    slice_items,
)


@pytest.mark.parametrize(
    ("values", "groups"),
    [
        ([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 2, 2]),
        ([6, 5, 4, 3, 2, 1], [2, 2, 1, 1, 0, 0]),
        ([1, 1, 1, 1, 5, 9], [0, 0, 0, 0, 1, 1]),  # four equal values stay together
        ([1, 2, 3, 4], [0, 0, 1, 2]),
        ([7, 7], [0, 0]),
        ([None, 2, None, 3], [-1, 0, -1, 1]),
        ([None], [-1]),
        ([], []),
    ],
)
def test_groups_of_about_equal_size(values: list[float | None], groups: list[int]) -> None:
    assert groups_of(values).tolist() == groups


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_groups_are_ordered_and_keep_equal_values_together(values: list[int]) -> None:
    found = groups_of([float(value) for value in values]).tolist()
    assert set(found) == set(range(max(found) + 1))
    assert max(found) <= 2
    by_value = sorted(set(zip(values, found, strict=True)))
    assert len(by_value) == len(set(values))
    assert [group for _, group in by_value] == sorted(group for _, group in by_value)


def test_a_slice_is_compared_with_the_other_items() -> None:
    values = [0.0, 0.2, 0.0, 0.2, 1.0, 0.8, 1.0, 0.8]
    words = [2.0, 2.0, 3.0, 3.0, 9.0, 9.0, 9.0, 9.0]
    slices = slice_items(values, [{"words": word} for word in words], higher_is_better=True)
    assert [(each.range, each.items) for each in slices] == [("2 to 3", 4), ("9", 4)]
    short, long = slices
    assert short.mean == pytest.approx(0.1)
    assert long.mean == pytest.approx(0.9)
    assert short.difference == pytest.approx(-0.8)
    assert short.interval == mean_interval(values[:4], within=(0, 1))
    assert short.worse
    assert not long.worse
    assert short.difference_interval is not None
    assert short.difference_interval[0] < -0.8 < short.difference_interval[1] < 0


def test_for_errors_the_slice_with_more_of_them_is_worse() -> None:
    values, gold = [0.0, 0.1, 0.0, 0.1, 0.9, 0.8, 0.9, 0.8], [1.0] * 4 + [5.0] * 4
    slices = slice_items(values, [{"gold": score} for score in gold], higher_is_better=False)
    assert [each.worse for each in slices] == [False, True]


def test_items_without_a_feature_are_in_no_slice_of_it() -> None:
    features: list[Features] = [{"a": None}, {"a": 1.0}, {"a": 2.0}]
    slices = slice_items([0.5, 0.0, 1.0], features, higher_is_better=True)
    assert [(each.low, each.items, each.difference) for each in slices] == [
        (1.0, 1, -1.0),
        (2.0, 1, 1.0),
    ]


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("items", [1, 3, 7])
def test_equal_values_have_no_interval(value: float, items: int) -> None:
    features: list[Features] = [*[{"a": 1.0}] * items, *[{"a": 2.0}] * 2]
    short, long = slice_items([value] * items + [0.4, 0.6], features, higher_is_better=True)
    assert short.items == items
    assert short.interval is None
    assert long.interval is not None


def test_one_value_for_all_items_gives_one_slice_without_a_difference() -> None:
    (only,) = slice_items([0.5, 0.7], [{"a": 1.0}] * 2, higher_is_better=True)
    assert (only.difference, only.difference_interval, only.worse) == (None, None, False)


def test_an_interval_reaches_as_far_as_95_percent_of_all_shuffles() -> None:
    """One difference of four and four items, by enumerating all 70 ways to divide the items."""
    values, first = np.array([0.0, 0.1, 0.4, 0.5, 0.6, 0.7, 0.9, 1.0]), np.arange(8) < 4

    def ratio(inside: Sequence[int]) -> tuple[float, float]:
        one, other = values[[*inside]], np.delete(values, inside)
        error = np.sqrt(one.var(ddof=1) / 4 + other.var(ddof=1) / 4)
        return float(one.mean() - other.mean()), float(error)

    ratios = [abs(gap) / error for gap, error in map(ratio, combinations(range(8), 4))]
    reach = np.quantile(ratios, 0.95, method="higher")
    (found,) = difference_intervals(values, [(first, ~first)], draws=20_000)
    gap, error = ratio(range(4))
    assert found == pytest.approx((gap - reach * error, gap + reach * error))


@pytest.mark.parametrize("share", [0.5, None])
def test_by_chance_alone_at_most_one_in_twenty_runs_of_20_items_has_a_worse_slice(
    share: float | None,
) -> None:
    rng, runs, wrong = np.random.default_rng(0), 500, 0
    for seed in range(runs):
        values = rng.random(20) if share is None else (rng.random(20) < share).astype(float)
        groups = [groups_of(rng.random(20).tolist()) for _ in range(5)]
        pairs = [(group == number, group != number) for group in groups for number in range(3)]
        found = difference_intervals(values, pairs, draws=199, seed=seed)
        wrong += any(ends is not None and (ends[0] > 0 or ends[1] < 0) for ends in found)
    assert wrong / runs < 0.075  # 0.05, and two and a half standard errors of 500 runs


def test_a_real_difference_is_found_among_15_slices_of_20_items() -> None:
    rng = np.random.default_rng(1)
    features = rng.random((20, 5))
    values = np.where(features[:, 0] < np.sort(features[:, 0])[7], 0.1, 0.9) + rng.random(20) / 10
    named: list[Features] = [dict(zip("abcde", map(float, row), strict=True)) for row in features]
    slices = slice_items(values.tolist(), named, higher_is_better=True, draws=999)
    assert [(each.feature, each.items) for each in slices if each.worse] == [("a", 7)]


def test_a_slice_of_one_item_has_the_variance_of_the_others() -> None:
    values, first = np.array([0.1, *np.linspace(0.7, 1.0, 39)]), np.arange(40) < 1
    (found,) = difference_intervals(values, [(first, ~first)])
    assert found is not None
    assert found[0] < 0.1 - 0.85 < found[1] < 0


def test_two_items_say_nothing_about_their_difference() -> None:
    first = np.array([True, False])
    found = difference_intervals(np.array([0.0, 1.0]), [(first, ~first)], within=(0, 1), draws=99)
    assert found == [(-1.0, 1.0)]


def test_constant_parts_differ_only_if_chance_seldom_divides_the_items_so() -> None:
    for half, expected in ((2, (-1.0, 1.0)), (5, (-1.0, -1.0))):
        first = np.arange(2 * half) < half
        (found,) = difference_intervals((~first).astype(float), [(first, ~first)], within=(0, 1))
        assert found == expected


def test_an_interval_of_equal_values_is_zero() -> None:
    first = np.array([True, True, True, False])
    assert difference_intervals(np.full(4, 0.1), [(first, ~first)], draws=99) == [(0.0, 0.0)]


def test_values_of_features_as_text() -> None:
    assert [shown(value) for value in (3.0, 12345.0, 0.25)] == ["3", "12,345", "0.25"]
