"""Comparisons by exact value: Python's own, which compares an int with a float exactly."""

from __future__ import annotations

import math
import operator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.index.filters.comparisons import (
    OPERATORS,
    Value,
    compare,
    compare_columns,
    contains,
    is_in,
)
from sbert_search.index.storage.columns import exact_as_float

PYTHON = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EDGES = [0, 1, 2**24 + 1, 2**53 - 1, 2**53, 2**53 + 1, 2**60 + 1, 2**63 - 512, 2**63 - 1]
integers = st.sampled_from([*EDGES, *(-n for n in EDGES), -(2**63)]) | st.integers(
    -(2**63), 2**63 - 1
)
near = integers.map(float) | integers.map(lambda n: math.nextafter(float(n), 0))
floats = near | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([-0.0, 0.5])
literals = integers | floats | st.sampled_from([math.inf, -math.inf, 2.0**63, -(2.0**64), 1e308])
columns = st.tuples(st.just(pa.int64()), st.lists(integers | st.none())) | st.tuples(
    st.just(pa.float64()), st.lists(floats | st.none())
)


def by_python(left: float | None, name: str, right: float | None) -> bool | None:
    return None if left is None or right is None else PYTHON[name](left, right)


@given(columns, literals)
def test_numbers_compare_with_literals_exactly(
    column: tuple[pa.DataType, list[float | None]], literal: float
) -> None:
    array = pa.array(column[1], column[0])
    for name in OPERATORS:
        expected = [by_python(v, name, literal) for v in column[1]]
        assert compare(array, name, literal).to_pylist() == expected


@given(columns, st.lists(literals))
def test_numbers_are_looked_up_exactly(
    column: tuple[pa.DataType, list[float | None]], among: list[Value]
) -> None:
    values = column[1]
    expected = [None if v is None else v in among for v in values]
    assert is_in(pa.array(values, column[0]), among).to_pylist() == expected


@given(
    st.lists(st.tuples(integers | st.none(), floats | st.none())),
    st.lists(integers.map(lambda n: (n, float(n)))),
)
def test_columns_of_integers_and_floats_compare_exactly(
    pairs: list[tuple[int | None, float | None]], rounded: list[tuple[int, float]]
) -> None:
    pairs = [*pairs, *rounded]
    left = pa.array([n for n, _ in pairs], pa.int64())
    right = pa.array([x for _, x in pairs], pa.float64())
    for name in OPERATORS:
        compared = [by_python(n, name, x) for n, x in pairs]
        assert compare_columns(left, name, right).to_pylist() == compared
        swapped = [by_python(x, name, n) for n, x in pairs]
        assert compare_columns(right, name, left).to_pylist() == swapped


@given(st.lists(integers, min_size=1))
def test_integers_that_float64_holds_are_known(values: list[int]) -> None:
    marks = exact_as_float(pa.array(values, pa.int64()).to_numpy())
    assert marks.tolist() == [int(float(value)) == value for value in values]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.bool_(), pa.int64()])
def test_nothing_is_among_no_values(kind: pa.DataType) -> None:
    assert is_in(pa.nulls(2, kind), []).to_pylist() == [None, None]


@given(
    st.lists(st.none() | st.lists(integers | floats, max_size=4), max_size=6),
    st.integers(0, 3),
    st.booleans(),
    st.data(),
)
def test_a_list_contains_what_python_finds_in_it(
    lists: list[list[int | float] | None], start: int, exact: bool, data: st.DataObject
) -> None:
    kind = pa.int64() if exact else pa.float64()
    typed = [
        None if items is None else [int(v) if exact else float(v) for v in items if abs(v) < 2**62]
        for items in lists
    ]
    known = [value for items in typed if items for value in items]
    value = data.draw(st.sampled_from(known) if known else integers | floats)
    column = pa.array(typed, pa.large_list(kind)).slice(start)
    expected = [None if items is None else value in items for items in typed[start:]]
    assert contains(column, value).to_pylist() == expected


def test_values_below_a_null_list_count_for_no_list() -> None:
    offsets, values = pa.array([0, 2, 4, 4, 6], pa.int64()), pa.array([1, 2, 3, 4, 5, 3])
    lists = pa.LargeListArray.from_arrays(
        offsets, values, mask=pa.array([False, True, False, False])
    )
    assert contains(lists, 3).to_pylist() == [False, None, False, True]
    texts = pa.array([["a", None], [None]], pa.large_list(pa.large_string()))
    assert contains(texts, "a").to_pylist() == [True, False]
