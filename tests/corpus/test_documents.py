"""Every source gives its rows, and every row is accounted for."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from sbert_search.corpus.documents import CorpusReader, FieldNames
from sbert_search.errors import CorpusError
from tests.corpus.accounting import read_all


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
    assert [reject.reason for reject in rejects] == ["no 'id', the id of the row"] * n_without
    with pytest.raises(CorpusError, match=r"c\.jsonl:1: no 'id', the id of the row"):
        CorpusReader([path]).survey()


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
