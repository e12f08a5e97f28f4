"""Filters whose values are apart from their text mean what a loop over the rows says."""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search import Index, SearchEngine, SearchOptions
from sbert_search.errors import QueryError
from sbert_search.index.filters.structured import condition_text
from sbert_search.records import Where

INJECTED = "x' OR brand = 'Acme"
BRANDS = ["Acme", "O'Neil", INJECTED, 'say "?"', "", "a\\b'", None]
ROWS: list[dict[str, Any]] = [
    {"_id": str(n), "text": "a lamp", "brand": brand, "year": 2000 + n, "tags": ["new", str(n)]}
    for n, brand in enumerate(BRANDS)
]


class Brand(str, Enum):  # noqa: UP042 (StrEnum prints its value)
    """A text, as programs name their choices."""

    ACME = "Acme"


@pytest.fixture(scope="module")
def index() -> Index:
    rows = [{name: v for name, v in row.items() if v is not None} for row in ROWS]
    return Index.build(rows, model="hashing")


def found(index: Index, where: Where) -> str:
    return "".join(document.doc_id for document in index.documents(where))


@pytest.mark.parametrize("brand", [brand for brand in BRANDS if brand])
def test_a_value_is_compared_as_it_is(index: Index, brand: str) -> None:
    expected = str(BRANDS.index(brand))
    assert found(index, ("brand = ?", [brand])) == expected
    assert found(index, {"brand": brand}) == expected
    hits = SearchEngine(index).search("lamp", where={"brand": brand}, mode="lexical")
    assert [hit.doc_id for hit in hits] == [expected]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_text_becomes_a_part_of_the_condition(index: Index, text: str) -> None:
    expected = "".join(str(n) for n, brand in enumerate(BRANDS) if brand == text)
    assert found(index, ("brand = ? AND doc_id IS NOT NULL", [text])) == expected
    assert found(index, {"brand": text}) == expected
    assert found(index, {"brand": {"$like": text}}) == "".join(
        str(n) for n, brand in enumerate(BRANDS) if brand is not None and text in brand
    )


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("year >= ? AND year < ?", [2001, 2003.5]), "123"),
        (("brand IN ? OR year = ?", [["Acme", "O'Neil"], 2006]), "016"),
        (("brand = 'say \"?\"' AND year = ?", [2003]), "3"),
        (('"brand" = ?', (Brand.ACME,)), "0"),
        (("year = ?", [np.int64(2002)]), "2"),
        ({"year": {"$gte": 2001, "$lt": 2003}}, "12"),
        ({"year": 2001, "brand": "O'Neil"}, "1"),
        ({"year": 2001, "brand": "Acme"}, ""),
        ({"brand": None}, "6"),
        ({"brand": {"$ne": "Acme"}}, "123456"),
        ({"brand": {"$nin": ["Acme", "O'Neil"]}}, "23456"),
        (("brand IN ?", [[]]), ""),
        (("brand NOT IN ?", [[]]), "012345"),
        (("year = 2002 OR NOT brand IN ?", [[]]), "012345"),
        ({"brand": {"$in": []}}, ""),
        ({"brand": {"$nin": []}}, "0123456"),
        ({"brand": {"$in": ["Acme", None]}}, "06"),
        ({"$not": {"brand": "Acme"}}, "123456"),
        ({"$or": [{"brand": "Acme"}, {"year": {"$between": [2005, 2006]}}]}, "056"),
        ({"tags": {"$contains": "4"}}, "4"),
        ({"tags": {"$contains_any": ["4", "absent"]}}, "4"),
        ({"tags": {"$contains_any": []}}, ""),
        ({"brand": {"$exists": False}}, "6"),
        ({"doc_id": "3"}, "3"),
    ],
)
def test_each_form(index: Index, where: Where, expected: str) -> None:
    assert found(index, where) == expected


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"brnd": "Acme"}, "Unknown column 'brnd'; did you mean 'brand'"),
        ({"brnd": {"$in": []}}, "Unknown column 'brnd'"),
        ({"brnd": {"$ne": "Acme"}}, "Unknown column 'brnd'"),
        ({"year": "2001"}, "column is int64; compare it with a number"),
        ({"tags": "new"}, "'tags' is a list; write 'x' IN"),
        ({"brand": {"$gtt": 1}}, r"did you mean '\$gt"),
        ({"brand": b"Acme"}, "of type bytes; pass a text"),
        ({"year": float("nan")}, "nan of type float"),
        ({}, r"A filter is \{\}; write it as"),
        (("brand = ?", []), "1 question marks and 0 values"),
        (("brand = '?'", ["Acme"]), "0 question marks and 1 values"),
        (("brand = ?", "A"), "the values 'A'; pass a list"),
        (("brand = ?", [None]), "no value equals NULL; write IS NULL"),
        (("brand IN ?", ["Acme", "O'Neil"]), "1 question marks and 2 values; .* IN are one list"),
        (("brand", "=", "Acme"), "it must be text such as"),
        (3, "The filter is 3; it must be text such as"),
    ],
)
def test_a_wrong_filter_is_refused(index: Index, where: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        found(index, where)


@pytest.mark.parametrize(
    "where",
    [{"year": {"$gte": "x"}, "brand": "Acme"}, ("year >= ? AND brand = ?", ["x", "Acme"])],
    ids=str,
)
def test_an_error_shows_the_filter_as_it_was_given(index: Index, where: Any) -> None:
    with pytest.raises(QueryError) as refused:
        found(index, where)
    first, shown = str(refused.value).split("\n")
    assert "the column is int64; compare it with a number" in first
    assert shown.strip() == repr(where)


def test_a_deep_filter_is_refused() -> None:
    where: dict[str, Any] = {"year": 1}
    for _ in range(10_000):
        where = {"$not": where}
    with pytest.raises(QueryError, match="nested too deeply"):
        condition_text(where)


def test_dates_and_options_take_values() -> None:
    rows = [{"_id": str(n), "text": "x", "day": date(2024, 1, n)} for n in (1, 2, 3)]
    index = Index.build(rows, model="hashing")
    options = SearchOptions(where=("day > ?", [date(2024, 1, 1)]))
    hits = SearchEngine(index).search("x", options=options)
    assert sorted(hit.doc_id for hit in hits) == ["2", "3"]
    assert index.delete(where={"day": date(2024, 1, 2)}) == 1


def test_dates_of_other_countries_that_are_compared_as_text_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dates = {"seit": "15.09.2025", "bis": "16.09.2025"}
    index = Index.build([{"_id": "a", "text": "x", **dates}], model="hashing")
    noted = capsys.readouterr().err
    assert noted.count("is compared and sorted letter by letter") == 2
    assert "An index built with --column-type seit=date:%d.%m.%Y" in noted
    for name, where in (
        ("seit", "seit > '2025-01-01'"),
        ("bis", "bis BETWEEN '2025-01-01' AND '2026-01-01'"),
    ):
        list(index.documents(where))
        said = capsys.readouterr().err
        assert f"{name!r} is text, such as {dates[name]!r}" in said
        assert f"An index built with --column-type {name}=date:%d.%m.%Y" in said
    list(index.documents("seit = '15.09.2025' AND seit > '1'"))
    assert not capsys.readouterr().err
