"""LangChain's filters, operator by operator."""

from __future__ import annotations

from typing import Any

import pytest

from sbert_search.errors import QueryError
from sbert_search.index.filters.structured import condition_text
from sbert_search.integrations.collection import Collection
from sbert_search.integrations.records import Conditions, Record
from sbert_search.records import Where

ROWS: list[dict[str, object]] = [
    {"n": 1, "s": "Tide", "l": ["a", "b"]},
    {"n": 2, "s": "dune"},
    {"n": 3, "l": ["b"]},
]


@pytest.fixture(scope="module")
def stored() -> Collection:
    collection = Collection(model="hashing")
    collection.write([Record(str(n), "text", row) for n, row in enumerate(ROWS)])
    return collection


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (None, "012"),
        ({}, "012"),
        ("n > 1 AND s IS NOT NULL", "1"),
        (("s = ?", ["Tide"]), "0"),
        ({"n": 2}, "1"),
        ({"n": 2, "s": "Tide"}, ""),
        ({"s": None}, "2"),
        ({"n": {"$eq": 2}}, "1"),
        ({"s": {"$ne": "Tide"}}, "12"),
        ({"n": {"$lt": 2}}, "0"),
        ({"n": {"$lte": 2}}, "01"),
        ({"n": {"$gt": 2}}, "2"),
        ({"n": {"$gte": 2, "$lt": 3}}, "1"),
        ({"n": {"$in": [1, 3]}}, "02"),
        ({"s": {"$nin": ["Tide"]}}, "12"),
        ({"n": {"$between": [2, 3]}}, "12"),
        ({"s": {"$exists": True}}, "01"),
        ({"s": {"$exists": False}}, "2"),
        ({"l": {"$contains": "a"}}, "0"),
        ({"s": {"$like": "id"}}, "0"),
        ({"s": {"$ilike": "D"}}, "01"),
        ({"$or": [{"n": 1}, {"s": "dune"}]}, "01"),
        ({"$and": [{"n": {"$gt": 1}}, {"$not": {"s": "dune"}}]}, "2"),
        ({"absent": {"$ne": 1}}, "012"),
    ],
)
def test_each_operator(stored: Collection, filters: Where | None, found: str) -> None:
    where = condition_text(filters, Conditions(stored.columns)) if filters else None
    assert "".join(record.doc_id for record in stored.documents(where)) == found


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"n": {"$gtt": 1}}, r"'\$gtt'.*did you mean '\$gt"),
        ({"$xor": []}, r"'\$xor'"),
        ({"$or": {"n": 1}}, "needs a list"),
        ({"$and": []}, "needs a list"),
        ({"n": {"$in": 3}}, r"\$in has 3; it needs a list"),
        ({"n": {"$between": [1]}}, r"\$between has \[1\]; it needs the lowest"),
        ({"$not": 3}, "A filter is 3"),
        ({"n": [1]}, r"\$eq has \[1\]; it compares with one value"),
        ({"n": {"$ne": ["a"]}}, r"\$ne has \['a'\]; it compares with one value"),
        ({"n": {"$in": [[1]]}}, r"\$in has \[1\]; it compares with one value"),
        ({3: 1}, "A filter names 3; the names of metadata are texts"),
        ({"n": {}}, "filter of 'n' is empty"),
    ],
)
def test_a_wrong_filter_is_refused(filters: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        condition_text(filters, Conditions({"n": "int64"}))
