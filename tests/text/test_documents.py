"""Every source gives its rows, and every row is accounted for."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search import Index
from sbert_search.errors import CorpusError
from sbert_search.text import documents
from sbert_search.text.documents import CorpusReader, FieldNames
from sbert_search.text.formats.rows import RawRow, Reject
from sbert_search.text.sources import SourceFile, read_rows
from sbert_search.text.vectors import RowVectors
from tests.text.accounting import read_all


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_jsonl_gives_documents_with_metadata_and_place(tmp_path: Path) -> None:
    rows = [
        {"_id": "a", "title": "Tea", "text": "Green tea.", "year": 2019, "tags": ["x"]},
        {"_id": 7, "text": "Coffee.", "year": 2.5, "tags": None},
    ]
    documents, rejects, survey = read_all(write_jsonl(tmp_path / "c.jsonl", rows))
    assert not rejects
    assert [document.doc_id for document in documents] == ["a", "7"]
    assert documents[0].full_text == "Tea Green tea."
    assert documents[0].metadata == {"year": 2019.0, "tags": ["x"]}
    assert documents[1].metadata == {"year": 2.5}
    assert documents[1].source.endswith("c.jsonl:2")
    assert survey.columns == {"year": "float64", "tags": "list[string]"}


def test_without_an_id_field_ids_are_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "three"}\n')
    documents, _, _ = read_all(path)
    assert [document.doc_id for document in documents] == ["c.jsonl#1", "c.jsonl#3"]


@pytest.mark.parametrize("n_without", [1, 150])
def test_an_id_field_that_comes_late_rejects_the_rows_before_it(
    tmp_path: Path, n_without: int
) -> None:
    rows: list[dict[str, object]] = [{"text": "one"}] * n_without
    path = write_jsonl(tmp_path / "c.jsonl", [*rows, {"text": "three", "id": "3"}])
    documents, rejects, _ = read_all(path)
    assert [document.doc_id for document in documents] == ["3"]
    reason = "the row has no id ('id' is missing or empty)"
    assert [reject.reason for reject in rejects] == [reason] * n_without
    with pytest.raises(CorpusError, match=r"c\.jsonl:1: the row has no id \('id' is missing"):
        CorpusReader([path]).survey()


def test_rows_before_a_late_id_field_leave_no_trace(tmp_path: Path) -> None:
    """Neither their columns and types nor the dimensions of their vectors; other files' do."""
    write_jsonl(tmp_path / "a.jsonl", [{"id": "0", "text": "t", "n": 1, "vector": [1, 2, 3]}])
    lost: list[dict[str, object]] = [
        {"text": "t", "year": "old", "n": 2.5, "more": 1},
        {"text": "t", "vector": [1, 2]},
    ] * 75  # more rows than those by which the fields are found
    kept: dict[str, object] = {
        "text": "three",
        "id": "3",
        "year": 1999,
        "n": 2,
        "vector": [4, 5, 6],
    }
    path = write_jsonl(tmp_path / "c.jsonl", [*lost, kept])
    fields = FieldNames(vector="vector")
    for sources in ([path], [tmp_path / "a.jsonl", path]):
        reader = CorpusReader(sources, fields=fields, on_error="skip")
        survey = reader.survey()
        assert survey.columns == {"year": "int64", "n": "int64"}
        assert (survey.dim, survey.rejected) == (3, 150)
        documents = [document for batch in reader.batches() for document in batch.documents]
        assert documents[-1].metadata == {"year": 1999, "n": 2}
    without = write_jsonl(tmp_path / "d.jsonl", lost[:1])
    learnt = {"year": "string", "n": "float64", "more": "int64"}
    assert CorpusReader([without]).survey().columns == learnt


def test_the_first_row_need_not_have_every_field(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"id": "1", "title": "t"}, {"id": "2", "text": "x"}]
    path = write_jsonl(tmp_path / "c.jsonl", rows)
    for fields in (None, FieldNames(text="text")):
        documents, _, _ = read_all(path, fields=fields)
        assert [document.title + document.text for document in documents] == ["t", "x"]


def test_fields_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("key,head,story\nk1,Tea,Green tea\n")
    fields = FieldNames(id="key", text="story", title="head")
    documents, _, _ = read_all(path, fields=fields)
    assert (documents[0].doc_id, documents[0].full_text) == ("k1", "Tea Green tea")


def test_several_sources_are_read_in_order(tmp_path: Path) -> None:
    beir = tmp_path / "beir"
    beir.mkdir()
    with gzip.open(beir / "corpus.jsonl.gz", "wt") as file:
        file.write('{"_id": "b", "title": "", "text": "from a BEIR folder"}\n')
    (tmp_path / "l.txt").write_text("first\n\nthird\n")
    notes = tmp_path / "notes"
    (notes / "sub").mkdir(parents=True)
    (notes / "b.txt").write_text("note b")
    (notes / "sub" / "a.md").write_text("# note a")
    documents, _, survey = read_all(beir, tmp_path / "l.txt", notes)
    ids = [document.doc_id for document in documents]
    assert ids == ["b", "l.txt#1", "l.txt#3", "b.txt", "sub/a.md"]
    assert survey.rows == 5


@pytest.mark.parametrize(
    ("name", "rows", "rejected"),
    [("scifact", 5183, 0), ("cranfield", 1400, 2), ("npl", 11429, 0), ("lisa", 6004, 0)],
)
def test_real_collections(name: str, rows: int, rejected: int) -> None:
    if not (data := os.environ.get("SBERT_SEARCH_DATA")):
        pytest.skip("SBERT_SEARCH_DATA is not set")
    documents, rejects, survey = read_all(Path(data) / name, batch_rows=1000)
    assert (survey.rows, len(rejects)) == (rows, rejected)
    assert len({document.doc_id for document in documents}) == rows - rejected


@pytest.mark.parametrize("batch_rows", [2, 1000])
@pytest.mark.parametrize("change", ["append", "append a column", "cut", "rewrite"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, change: str, batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.jsonl"
    rows: list[dict[str, object]] = [{"id": str(n), "text": f"text {n}"} for n in range(10)]
    write_jsonl(file, rows)
    changes: dict[str, list[dict[str, object]]] = {
        "append": [*rows, {"id": "late", "text": "late"}],
        "append a column": [*rows, {"id": "late", "text": "late", "level": "error"}],
        "cut": rows[:7],
        "rewrite": [{**row, "text": "another text"} for row in rows],
    }
    reader = CorpusReader(file, batch_rows=batch_rows)

    def changing(source: SourceFile, **options: Any) -> Iterator[RawRow | Reject]:
        write_jsonl(file, changes[change])
        os.utime(file, (1, 1))  # not the time of the first writing, whatever the clock
        return read_rows(source, **options)

    reader.survey()
    monkeypatch.setattr(documents, "read_rows", changing)
    with pytest.raises(CorpusError, match=r"c\.jsonl: changed while it was read"):
        next(reader.batches())


def test_an_index_may_be_built_in_the_folder_of_its_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.md", "b.md"):
        Path(name).write_text(name)
    os.utime(tmp_path, (1, 1))  # so the folder changes when the index is made, whatever the clock
    index = Index.build(".", out="my.index", model="hashing")
    assert [document.doc_id for document in index] == ["a.md", "b.md"]
    Path("b.md").write_text("another text")
    counts = index.upsert(".").counts
    assert (counts.duplicate, counts.replaced) == (1, 1)


def test_vectors_stay_with_the_files_of_a_folder_of_which_one_becomes_blank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "notes"
    (folder / "below").mkdir(parents=True)
    for name in ("a", "below/b", "c", "d"):
        (folder / f"{name}.md").write_text(name)
    vectors = RowVectors(np.eye(4, dtype=np.float32))
    reader = CorpusReader(folder, vectors=vectors)

    def changing(source: SourceFile, **options: Any) -> Iterator[RawRow | Reject]:
        (folder / "below" / "b.md").write_text("")
        return read_rows(source, **options)

    reader.survey()
    monkeypatch.setattr(documents, "read_rows", changing)
    with pytest.raises(CorpusError, match="notes: changed while it was read"):
        list(reader.batches())


def test_fields_without_end_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": "a mill", f"user {n}": n}) for n in range(1010)]
    path.write_text("\n".join([*lines, json.dumps({"text": "b", "user 0": 1, "price": 2})]))
    reader = CorpusReader([path], columns={"price": "int64"}, metadata_fields=["price"])
    left_out = reader.survey().left_out
    assert len(left_out) == 1000
    assert (left_out["user 0"], left_out["user 1"]) == (set(), {"price"})
