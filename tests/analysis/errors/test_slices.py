import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.analysis.errors.slices import (
    Features,
    difference_intervals,
    groups_of,
    shown,
    slice_items,
)
from sbert_search.metrics.significance import mean_interval


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
    values, gold = [0.0, 0.1, 0.0, 0.9, 0.8, 0.9], [1.0, 1.0, 1.0, 5.0, 5.0, 5.0]
    slices = slice_items(values, [{"gold": score} for score in gold], higher_is_better=False)
    assert [each.worse for each in slices] == [False, True]


def test_items_without_a_feature_are_in_no_slice_of_it() -> None:
    features: list[Features] = [{"a": None}, {"a": 1.0}, {"a": 2.0}]
    slices = slice_items([0.5, 0.0, 1.0], features, higher_is_better=True)
    assert [(each.low, each.items, each.difference) for each in slices] == [
        (1.0, 1, -1.0),
        (2.0, 1, 1.0),
    ]


def test_one_value_for_all_items_gives_one_slice_without_a_difference() -> None:
    (only,) = slice_items([0.5, 0.7], [{"a": 1.0}] * 2, higher_is_better=True)
    assert (only.difference, only.difference_interval, only.worse) == (None, None, False)


def test_intervals_of_differences_equal_a_plain_bootstrap() -> None:
    rng = np.random.default_rng(5)
    values, first = rng.random(30), np.arange(30) < 12
    pairs = [(first, ~first), (~first, first), (first & ~first, first)]
    found = difference_intervals(values, pairs, draws=400, seed=3)
    picks = np.random.default_rng(3).integers(0, 30, (400, 30))
    gains = [values[pick][first[pick]].mean() - values[pick][~first[pick]].mean() for pick in picks]
    # Two differences share the error probability of 5 %: 1.25 % at each end.
    assert found[0] == pytest.approx(tuple(np.quantile(gains, [0.0125, 0.9875])))
    assert found[1] == pytest.approx(tuple(np.quantile(np.negative(gains), [0.0125, 0.9875])))
    assert found[2] is None


def test_an_interval_of_constant_parts_is_their_difference() -> None:
    first = np.array([True, True, False, False])
    (found,) = difference_intervals(np.array([0.0, 0.0, 1.0, 1.0]), [(first, ~first)], draws=200)
    assert found == (-1.0, -1.0)


def test_values_of_features_as_text() -> None:
    assert [shown(value) for value in (3.0, 12345.0, 0.25)] == ["3", "12,345", "0.25"]
