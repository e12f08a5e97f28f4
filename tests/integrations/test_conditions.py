"""Conditions over columns agree with Python's own comparisons, for any values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, date, datetime
from enum import StrEnum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.index.filters.structured import all_of, any_of, literal, none_of
from sbert_search.integrations.collection import Collection
from sbert_search.integrations.records import Conditions, Record

NAMES = ("n", "x", "s", "b", "l", "doc_id", "title", 'a"b.c', "absent")
ROWS: list[dict[str, object]] = [
    {"n": 3, "x": 0.5, "s": "it's", "b": True, "l": ["a", "b"]},
    {"n": -2, "x": 3.0, "s": "50% _ \\", "b": False, "l": ["b"]},
    {"n": 0, "doc_id": "other", "title": "Tides", 'a"b.c': 1},
    {"x": -1e300, "s": "IT'S", "l": ["a"]},
    {},
]
VALUES = st.one_of(
    st.sampled_from([3, 0, -2, 0.5, 3.0, "it's", "50% _ \\", "IT'S", "Tides", "other", 1, "a"]),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=4),
)


@pytest.fixture(scope="module")
def stored() -> Collection:
    collection = Collection(model="hashing")
    collection.write([Record(str(n), f"text {n}", row) for n, row in enumerate(ROWS)])
    return collection


def _found(stored: Collection, condition: str) -> list[int]:
    return [int(record.doc_id) for record in stored.documents(condition)]


def _expected(test: Callable[[dict[str, object]], bool]) -> list[int]:
    return [n for n, row in enumerate(ROWS) if test(row)]


def _same(left: object, right: object) -> bool:
    """Equality of Python, where no text equals a number."""
    return left is not None and left == right


@given(st.sampled_from(NAMES), VALUES)
def test_equality_and_its_negation_are_those_of_python(
    stored: Collection, name: str, value: object
) -> None:
    equal = Conditions(stored.columns).equals(name, value)
    assert _found(stored, equal) == _expected(lambda row: _same(row.get(name), value))
    assert _found(stored, none_of(equal)) == _expected(lambda row: not _same(row.get(name), value))


@given(st.sampled_from(NAMES), st.lists(VALUES, max_size=3))
def test_membership_is_that_of_python(stored: Collection, name: str, values: list[object]) -> None:
    found = Conditions(stored.columns).is_in(name, values)
    assert _found(stored, found) == _expected(
        lambda row: any(_same(row.get(name), value) for value in values)
    )


@given(st.sampled_from(["n", "x", "b"]), st.sampled_from(["lt", "le", "gt", "ge"]), VALUES)
def test_order_is_that_of_python(stored: Collection, name: str, order: str, value: object) -> None:
    if isinstance(value, str):
        return
    sign = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}[order]
    compare: Callable[[object, object], bool] = getattr(operator, order)
    found = Conditions(stored.columns).compares(name, sign, value)
    assert _found(stored, found) == _expected(
        lambda row: row.get(name) is not None and compare(row[name], value)
    )


def test_texts_lists_and_absent_values(stored: Collection) -> None:
    columns = Conditions(stored.columns)
    assert _found(stored, columns.has_text("s", "% _ \\")) == [1]
    assert _found(stored, columns.has_text("s", "it'", ignore_case=True)) == [0, 3]
    assert _found(stored, columns.has_text("n", "3")) == []
    assert _found(stored, columns.contains("l", "a")) == [0, 3]
    assert _found(stored, columns.contains("l", 1)) == []
    assert _found(stored, columns.is_null("l")) == [2, 4]
    assert _found(stored, columns.is_null("absent")) == [0, 1, 2, 3, 4]
    assert _found(stored, columns.is_in("n", [3, None])) == [0, 3, 4]
    assert _found(stored, columns.compares("s", "<", 3)) == []
    assert _found(stored, all_of([columns.always, any_of([columns.never, "x > 1"])])) == [1]
    assert _found(stored, columns.id_in(["4", "1", "9"])) == [1, 4]
    assert _found(stored, columns.id_in([])) == []


def test_numbers_of_numpy_are_those_of_python(stored: Collection) -> None:
    columns = Conditions(stored.columns)
    assert _found(stored, columns.equals("n", np.int64(3))) == [0]
    assert _found(stored, columns.is_in("x", [np.float32(0.5), np.float64(3)])) == [0, 1]
    assert _found(stored, columns.compares("n", "<", np.int32(0))) == [1]
    assert _found(stored, columns.equals("b", np.True_)) == [0]
    assert _found(stored, columns.equals("n", np.False_)) == [2]
    assert _found(stored, columns.is_in("n", [np.False_, None])) == [2, 3, 4]
    assert _found(stored, columns.compares("n", ">", np.True_)) == [0]
    assert _found(stored, columns.compares("b", "<", np.int64(2))) == [0, 1]


@pytest.mark.parametrize("kind", [int, bool, np.int64, np.bool_])
def test_numbers_and_flags_are_the_same_in_lists(kind: Callable[[int], object]) -> None:
    collection = Collection(model="hashing")
    collection.write([Record("a", "x", {"n": [1], "b": [True]}), Record("b", "y", {"n": [0]})])
    columns = Conditions(collection.columns)
    for name in ("n", "b"):
        assert _found_ids(collection, columns.contains(name, kind(1))) == ["a"]


def test_times_are_compared_in_utc() -> None:
    collection = Collection(model="hashing")
    early, late = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 6, 1, tzinfo=UTC)
    collection.write([Record("a", "x", {"t": early}), Record("b", "y", {"t": late})])
    columns = Conditions(collection.columns)
    assert _found_ids(collection, columns.compares("t", ">", datetime(2024, 3, 1))) == ["b"]
    assert _found_ids(collection, columns.equals("t", early)) == ["a"]
    assert _found_ids(collection, columns.compares("t", ">", "2024-03-01")) == ["b"]
    assert _found_ids(collection, columns.compares("t", "<", date(2024, 3, 1))) == ["a"]
    assert _found_ids(collection, columns.equals("t", "soon")) == []
    collection.write([Record("c", "z", {"day": date(2024, 2, 3)})])
    columns = Conditions(collection.columns)
    assert _found_ids(collection, columns.equals("day", "2024-02-03")) == ["c"]


def test_ids_and_titles_that_are_no_metadata() -> None:
    collection = Collection(model="hashing")
    collection.write([Record("a", "x", {"n": 1}), Record("b", "y", {})])
    columns = Conditions(collection.columns)
    assert _found_ids(collection, columns.equals("doc_id", "a")) == ["a"]
    assert _found_ids(collection, none_of(columns.equals("doc_id", "a"))) == ["b"]
    assert _found_ids(collection, columns.is_null("doc_id")) == []
    assert _found_ids(collection, columns.is_null("title")) == ["a", "b"]
    assert _found_ids(collection, none_of(columns.is_null("title"))) == []


def test_members_of_enumerations_are_their_values() -> None:
    kind = StrEnum("kind", {"A": "a", "B": "b"})
    collection = Collection(model="hashing")
    collection.write([Record("1", "x", {"k": kind.A, "l": [kind.A]}), Record("2", "y", {"k": "b"})])
    columns = Conditions(collection.columns)
    for value in ("a", kind.A):
        assert _found_ids(collection, columns.equals("k", value)) == ["1"]
        assert _found_ids(collection, columns.contains("l", value)) == ["1"]
    assert literal(kind.B) == "'b'"


def _found_ids(stored: Collection, condition: str) -> list[str]:
    return [record.doc_id for record in stored.documents(condition)]


def test_an_apostrophe_in_a_literal_is_doubled() -> None:
    assert literal("it's") == "'it''s'"
