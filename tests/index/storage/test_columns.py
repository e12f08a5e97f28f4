"""Metadata keeps its values: no integer is rounded where a column widens to float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pytest

from sbert_search import Index
from sbert_search.errors import CorpusError, IndexStoreError
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.storage.columns import metadata_array
from sbert_search.index.storage.manifest import ColumnType, Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from sbert_search.index.writer import IndexWriter
from sbert_search.records import Document, MetadataValue
from tests.index.batches import make_batch, some_vectors

WIDE = 2**53 + 1  # the first integer that float64 rounds


def put(writer: IndexWriter, values: Sequence[MetadataValue], prefix: str) -> None:
    documents = [Document(f"{prefix}{i}", "x", metadata={"n": n}) for i, n in enumerate(values)]
    writer.commit(make_batch(documents, some_vectors(len(documents))))


def values_in(store: IndexStore) -> dict[str, MetadataValue]:
    return {document.doc_id: document.metadata["n"] for document in store.snapshot.iter_documents()}


def matching(store: IndexStore, where: str) -> list[str]:
    mask = store.snapshot.filter_mask(where)
    parts = zip(store.snapshot.segments, mask.parts, strict=True)
    return store.snapshot.doc_ids(np.concatenate([s.rows[part] for s, part in parts]))


@pytest.mark.parametrize(("first", "second"), [(WIDE, 1.5), (1.5, WIDE)])
def test_a_row_that_would_round_an_integer_is_refused_by_name(
    tmp_path: Path, first: float, second: float
) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"_id": "1", "text": "x", "n": {first}}}\n')
    (tmp_path / "b.jsonl").write_text(
        f'{{"_id": "2", "text": "y", "n": {second}}}\n{{"_id": "3", "text": "z", "n": {first}}}\n'
    )
    index = Index.build(tmp_path / "a.jsonl", out=tmp_path / "i", model="hashing")
    with pytest.raises(CorpusError, match=r"b.jsonl:1: column 'n' is of type .* would round"):
        index.add(tmp_path / "b.jsonl")
    assert len(index) == 1
    (tmp_path / "both.jsonl").write_text(
        (tmp_path / "a.jsonl").read_text() + (tmp_path / "b.jsonl").read_text()
    )
    settings = BuildSettings(on_error="skip")
    fresh = Index.build(
        tmp_path / "both.jsonl", out=tmp_path / "j", model="hashing", settings=settings
    )
    for each in (index, fresh):
        kept = {doc.doc_id: doc.metadata["n"] for doc in each.state.iter_documents()}
        assert kept.get("1") == first
        assert "2" not in kept


def test_columns_of_a_writer_widen_only_where_no_integer_is_rounded(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8), {"n": "int64"}))
    with store.writer() as writer:
        put(writer, [2**60, -(2**53)], "a")
        writer.add_columns({"n": "float64"})  # float64 holds these exactly
        put(writer, [0.5], "b")
        writer.compact()
    assert values_in(store) == {"a0": 2**60, "a1": -(2**53), "b0": 0.5}
    assert store.snapshot.segments[0].record.columns == {"n": "float64"}
    store = IndexStore.create(tmp_path / "j", Manifest.new(VectorSettings(dim=8), {"n": "int64"}))
    with store.writer() as writer:
        put(writer, [WIDE], "a")
        with pytest.raises(IndexStoreError, match=r"'n' of .* holds integers that float64"):
            writer.add_columns({"n": "float64"})
        put(writer, [7], "b")
    assert values_in(store) == {"a0": WIDE, "b0": 7}


@pytest.mark.parametrize("value", [WIDE, -WIDE, 2**63 - 1, math.nan, math.inf, -math.inf])
def test_what_a_float_column_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(IndexStoreError, match="Document 'd' has n = "):
        metadata_array([Document("d", "x", metadata={"n": value})], "n", "float64")


LISTS: dict[str, list[MetadataValue]] = {
    "list[string]": [["a", "é"], [], None, ["", "a", "a"]],
    "list[int64]": [[WIDE, -1], None, [], [0]],
    "list[float64]": [[0.5, -0.0], [], [1e300]],
    "list[bool]": [[True, False], [True]],
    "list[date]": [[date(2024, 1, 31), date(1, 1, 1)], None],
    "list[timestamp]": [[datetime(2024, 1, 31, 12, tzinfo=UTC)], []],
}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_are_stored_and_merged_as_they_are(tmp_path: Path, kind: ColumnType) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8), {"n": kind}))
    values = LISTS[kind]
    with store.writer() as writer:
        put(writer, values, "a")
        put(writer, values, "b")
        writer.delete(["a0"])
        stored = {f"{c}{i}": value for c in "ab" for i, value in enumerate(values)}
        del stored["a0"]
        for _ in range(2):
            found = {doc.doc_id: doc.metadata.get("n") for doc in store.snapshot.iter_documents()}
            assert found == stored
            writer.compact()
    assert len(store.snapshot.segments) == 1
    check(tmp_path / "i")


def test_a_list_that_does_not_fit_its_column_is_refused() -> None:
    wrong: list[MetadataValue] = ["a", 1, ["a"], [1.5], [True]]
    for value in wrong:
        with pytest.raises(IndexStoreError, match=r"has the type list\[int64\]"):
            metadata_array([Document("d", "x", metadata={"n": value})], "n", "list[int64]")
    with pytest.raises(IndexStoreError, match="write a finite number"):
        metadata_array([Document("d", "x", metadata={"n": [math.inf]})], "n", "list[float64]")
    with pytest.raises(IndexStoreError, match="has the type string"):
        metadata_array([Document("d", "x", metadata={"n": ["a"]})], "n", "string")


def test_an_unchanged_list_is_a_duplicate_and_a_changed_one_is_not(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"id": "a", "text": "x", "tags": ["p", "q"], "sizes": [1, 2]},
        {"id": "b", "text": "y"},
    ]
    index = Index.build(rows, out=tmp_path / "i", model="hashing")
    assert index.info().columns == {"tags": "list[string]", "sizes": "list[int64]"}
    assert index.upsert(rows).counts.duplicate == 2
    changed = [{**rows[0], "tags": ["pq"]}, {**rows[1], "tags": []}]
    assert index.upsert(changed).counts.replaced == 2
    documents = list(index.documents(where="'pq' IN tags AND 2 IN sizes"))
    assert [document.metadata for document in documents] == [{"tags": ["pq"], "sizes": [1, 2]}]


def test_lists_in_a_column_of_texts_are_json_text(tmp_path: Path) -> None:
    index = Index.build(
        [{"id": "a", "text": "x", "tags": "[]"}], out=tmp_path / "i", model="hashing"
    )
    index.add([{"id": "b", "text": "y", "tags": ["p", None], "more": ["q"]}])
    assert index.info().columns == {"tags": "string", "more": "list[string]"}
    document = index.get("b")
    assert document is not None
    assert document.metadata == {"tags": '["p", null]', "more": ["q"]}
