"""Metadata of any shape come back as they were."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbert_search.errors import CorpusError
from sbert_search.index.index import Index
from sbert_search.integrations.collection import Collection
from sbert_search.integrations.records import Record, record_of

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5)
SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
ANY = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)


@pytest.mark.thorough
@given(st.dictionaries(TEXT.filter(str.strip), ANY, max_size=4))
@settings(max_examples=20)
def test_metadata_come_back_unchanged(metadata: dict[str, object]) -> None:
    record = Record("1", "a text", metadata)
    collection = Collection(model="hashing:8")
    collection.write([record])
    (back,) = collection.get(["1"])
    assert back == record
    assert repr(sorted(back.metadata)) == repr(sorted(metadata))


def test_fields_of_a_row_may_be_names_of_metadata() -> None:
    names = ("id", "text", "title", "doc_id", "content", "_id_", "chunk", "row", "source")
    record = Record("1", "a text", {name: name.upper() for name in names})
    collection = Collection(model="hashing")
    collection.write([record])
    assert collection.get(["1"]) == [record]


def test_numpy_numbers_and_times_are_kept() -> None:
    moment = datetime(2024, 2, 29, 12, tzinfo=UTC)
    collection = Collection(model="hashing")
    collection.write([Record("1", "t", {"n": np.int32(3), "x": np.float32(0.5), "t": moment})])
    assert collection.get(["1"])[0].metadata == {"n": 3, "x": 0.5, "t": moment}


def test_lists_of_numpy_numbers_and_tuples_become_lists() -> None:
    collection = Collection(model="hashing")
    metadata = {"n": [np.int64(1), np.int64(2)], "mixed": [np.float32(0.5), None], "t": (1, 2)}
    collection.write([Record("1", "t", metadata)])
    assert collection.get(["1"])[0].metadata == {"n": [1, 2], "mixed": [0.5, None], "t": [1, 2]}


@pytest.mark.parametrize("name", ["_id", "_text", "_title", "_other", 3])
def test_a_reserved_name_is_refused(name: str) -> None:
    with pytest.raises(CorpusError, match=f"'d7' has metadata named {name!r}"):
        Collection(model="hashing").write([Record("d7", "t", {name: 1})])


def test_a_value_that_no_json_holds_is_refused() -> None:
    with pytest.raises(CorpusError, match="'d7' has metadata that cannot be stored"):
        Collection(model="hashing").write([Record("d7", "t", {"a": {"b": object()}})])


def test_the_title_of_an_indexed_document_is_metadata() -> None:
    index = Index.build([{"_id": "1", "title": "T", "text": "x", "n": 1}], model="hashing")
    document = index.get("1")
    assert document is not None
    assert record_of(document) == Record("1", "x", {"title": "T", "n": 1})
