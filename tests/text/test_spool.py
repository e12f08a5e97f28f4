from __future__ import annotations

import gc
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sbert_search.errors import CorpusError
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader, FieldNames
from sbert_search.text.spool import text_rows

TIME = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"_id": "a", "title": "A", "text": "first", "n": 1, "kind": "x", "at": TIME},
    {"_id": "b", "title": "", "text": "second", "n": 2, "kind": "y", "at": TIME},
    {"_id": "c", "title": "C", "text": "third", "n": 3, "kind": "x", "at": TIME},
]
DOCUMENTS = [
    Document(
        row["_id"],
        row["text"],
        row["title"],
        {name: row[name] for name in ("n", "kind", "at")},
        f"rows:{n}",
    )
    for n, row in enumerate(ROWS, 1)
]

FORMS: dict[str, Callable[[], Any]] = {
    "list": lambda: ROWS,
    "generator": lambda: (row for row in ROWS),
    "documents": lambda: DOCUMENTS,
    "pandas": lambda: pd.DataFrame(ROWS),
    "pandas with an index": lambda: pd.DataFrame(ROWS, index=[7, 5, 3]),
    "pandas categories": lambda: pd.DataFrame(ROWS).astype({"kind": "category"}),
    "polars": lambda: pl.DataFrame(ROWS),
    "arrow table": lambda: pa.Table.from_pylist(ROWS),
    "arrow stream": lambda: pa.Table.from_pylist(ROWS).to_reader(),
    "datasets": lambda: datasets.Dataset.from_list(ROWS),
    "datasets, chosen rows": lambda: datasets.Dataset.from_list(ROWS[::-1]).select([2, 1, 0]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_documents(form: str) -> None:
    reader = CorpusReader(FORMS[form]())
    survey = reader.survey()
    assert (survey.rows, survey.rejected) == (3, 0)
    assert dict(survey.columns) == {"n": "int64", "kind": "string", "at": "timestamp"}
    assert [document for batch in reader.batches() for document in batch.documents] == DOCUMENTS
    again = [document for batch in reader.batches(skip_rows=2) for document in batch.documents]
    assert again == DOCUMENTS[2:]


def test_documents_say_themselves_what_their_text_is() -> None:
    fields = FieldNames(id="kind", text=("title", "n"))
    reader = CorpusReader(DOCUMENTS, fields=fields)
    assert [document for batch in reader.batches() for document in batch.documents] == DOCUMENTS


def test_equal_rows_have_equal_hashes_so_that_builds_resume() -> None:
    hashes = {CorpusReader(FORMS[form]()).survey().sha256 for form in ("list", "generator")}
    assert len(hashes) == 1
    assert CorpusReader(ROWS[:2]).survey().sha256 not in hashes


def test_rows_without_an_id_field_are_numbered() -> None:
    reader = CorpusReader({"body": f"text {n}"} for n in range(3))
    documents = [document for batch in reader.batches() for document in batch.documents]
    assert [document.doc_id for document in documents] == ["rows#1", "rows#2", "rows#3"]


def test_bad_rows_are_counted_and_named() -> None:
    rows: list[dict[str, object]] = [
        {"_id": "a", "text": "a"},
        {"_id": "b", "text": 7},
        {"_id": "c", "text": "\ud800"},
    ]
    with pytest.raises(CorpusError, match=r"rows:2: 'text' is of type int"):
        CorpusReader(rows).survey()
    reader = CorpusReader(rows, on_error="skip")
    assert (reader.survey().rows, reader.survey().rejected) == (3, 2)
    (batch,) = reader.batches()
    assert [reject.source for reject in batch.rejects] == ["rows:2", "rows:3"]


def test_paths_may_come_from_a_generator(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(f'{{"_id": "{name}", "text": "x"}}\n')
    assert CorpusReader(path for path in sorted(tmp_path.glob("*.jsonl"))).survey().rows == 2


def test_a_pattern_with_a_blank_names_files(tmp_path: Path) -> None:
    (tmp_path / "my data").mkdir()
    (tmp_path / "my data" / "a.jsonl").write_text('{"_id": "1", "text": "one"}\n')
    assert CorpusReader(f"{tmp_path}/my data/*.jsonl").survey().rows == 1


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "No source to read"),
        (iter([]), "No source to read"),
        (7, "of type int cannot be read"),
        ({"_id": "a", "text": "b"}, "of type dict cannot be read; pass paths, a table, or a list"),
        (["a text of mine", "b"], "'a text of mine' is no file, folder or pattern"),
        ("a long text of mine " * 60, "is no file, folder or pattern of files. To index texts"),
        ([b"bytes"], "rows:1: a row must be a dict or a Document, not of type bytes"),
        ([Document("a", "b", metadata={"text": "c"})], "Document 'a' has metadata named 'text'"),
    ],
)
def test_what_is_no_source_is_refused(sources: Any, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        CorpusReader(sources)


def test_an_error_of_the_generator_is_the_users() -> None:
    def rows() -> Iterator[dict[str, object]]:
        yield {"text": "a"}
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        CorpusReader(rows())


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file"), OSError("no answer")])
def test_an_error_of_the_system_in_the_generator_is_the_users(error: OSError) -> None:
    def rows() -> Iterator[dict[str, object]]:
        yield {"text": "a"}
        raise error

    with pytest.raises(type(error), match=str(error.args[-1])) as raised:
        CorpusReader(rows())
    assert raised.value is error


def test_standard_input_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Folder(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise IsADirectoryError(21, "Is a directory")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Folder()))
    with pytest.raises(CorpusError, match="<stdin>: cannot be read: Is a directory"):
        CorpusReader("-")


def test_the_copy_lives_as_long_as_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n')))
    readers = [CorpusReader(ROWS), CorpusReader("-")]
    assert len(list(tmp_path.iterdir())) == 2
    assert [reader.survey().rows for reader in readers] == [3, 1]
    del readers
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("sources", "shown"), [(ROWS, "rows"), ("-", "<stdin>")])
def test_a_full_disk_is_named(sources: Any, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        name = "/full/spool"

        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda **_: Full())
    with pytest.raises(
        CorpusError, match=f"{shown}: cannot be copied to /full/spool: No space .*TMPDIR"
    ):
        CorpusReader(sources)


def test_texts_are_numbered_or_have_ids() -> None:
    assert list(text_rows(["a", "b"])) == [{"_id": 0, "text": "a"}, {"_id": 1, "text": "b"}]
    assert list(text_rows(iter(["a"]), ["x"])) == [{"_id": "x", "text": "a"}]
    with pytest.raises(CorpusError, match="There are 1 ids and more texts"):
        list(text_rows(["a", "b"], ["x"]))
    with pytest.raises(CorpusError, match="There are 2 texts and more ids"):
        list(text_rows(["a", "b"], ["x", "y", "z"]))
    with pytest.raises(CorpusError, match="These texts are one string"):
        list(text_rows("ab"))


def test_ids_of_standard_input_do_not_change_with_its_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_text('{"text": "t"}\n')
    ids, hashes = [], set()
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n')))
        paths: list[str | Path] = ["-", tmp_path / "a" / "x.jsonl", tmp_path / "b" / "x.jsonl"]
        reader = CorpusReader(paths)
        hashes.add(reader.survey().sha256)
        ids.append([document.doc_id for batch in reader.batches() for document in batch.documents])
    assert ids == [["stdin#1", "a/x.jsonl#1", "b/x.jsonl#1"]] * 2
    assert len(hashes) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk without room")
def test_what_is_left_of_a_copy_on_a_full_disk_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: late.append(each.exc_value))
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda **_: Path("/dev/full").open("wb"))  # noqa: SIM115
    with pytest.raises(CorpusError, match="rows: cannot be copied to /dev/full: No space"):
        CorpusReader(ROWS)
    gc.collect()
    assert late == []
