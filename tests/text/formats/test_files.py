"""Formats in which one file is one document, given alone, in folders and by globs."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sbert_search import Index
from sbert_search.errors import CorpusError
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader
from sbert_search.text.formats.files import KINDS, fingerprint, list_files
from tests.text.accounting import read_all

NOTEBOOK = json.dumps({"cells": [{"cell_type": "markdown", "source": "# Plot\nof tides"}]})
FILES = {
    "a.txt": ("The moon.", "a.txt", "The moon."),
    "b.md": ("# Tides\n\nTwice a day.", "Tides", "# Tides\n\nTwice a day."),
    "c.html": ("<title>Dunes</title><p>Wind heaps sand.", "Dunes", "Wind heaps sand."),
    "d.rst": ("Mills\n=====\n\nWater.", "Mills", "Mills\n=====\n\nWater."),
    "e.py": ("x = 1  # one\n", "e.py", "x = 1  # one\n"),
    "f.ipynb": (NOTEBOOK, "Plot", "# Plot\nof tides"),
    "sub/g.htm": ("no title", "g.htm", "no title"),
    "sub/deep/h.MD": ("no heading", "h.MD", "no heading"),
    "sub/i.R": ("y <- 2", "i.R", "y <- 2"),
}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    for name, (content, _, _) in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def by_id(documents: list[Document]) -> dict[str, tuple[str, str]]:
    return {document.doc_id: (document.title, document.text) for document in documents}


EXPECTED = {name: (title, text) for name, (_, title, text) in FILES.items()}


def test_every_kind_of_file_in_a_folder(notes: Path) -> None:
    os.utime(notes / "b.md", (0, 1_700_000_000))
    documents, rejects, survey = read_all(notes)
    assert by_id(documents) == EXPECTED
    assert not rejects
    assert survey.columns == {"path": "string", "modified": "timestamp"}
    tides = next(document for document in documents if document.doc_id == "b.md")
    assert tides.metadata == {
        "path": "b.md",
        "modified": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    }
    assert tides.source == f"{notes}/b.md:1"


@pytest.mark.parametrize("name", [name for name in FILES if name != "a.txt"])
def test_every_kind_of_file_alone(notes: Path, name: str) -> None:
    [document], _, _ = read_all(notes / name)
    own = Path(name).name
    assert (document.doc_id, document.metadata["path"]) == (own, own)
    assert (document.title, document.text) == EXPECTED[name]


def test_globs_and_lists_have_the_ids_of_the_folder(notes: Path) -> None:
    deep = {name: EXPECTED[name] for name in EXPECTED if name != "a.txt"}
    assert by_id(read_all(f"{notes}/**/*.*")[0]) == {**deep, "a.txt#1": ("", "The moon.")}
    listed = [notes / name for name in deep]
    assert by_id(read_all(*listed)[0]) == deep
    assert by_id(read_all(f"{notes}/*.md")[0]) == {"b.md": EXPECTED["b.md"]}
    both = by_id(read_all(notes / "sub", notes / "b.md")[0])
    assert set(both) == {"b.md", "sub/deep/h.MD", "sub/g.htm", "sub/i.R"}


def test_a_named_txt_file_has_a_document_a_line_unless_the_caller_says_file(
    notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (notes / "a.txt").write_text("one\ntwo\n")
    CorpusReader(notes / "a.txt").survey()
    assert capsys.readouterr().err == ""
    reader = CorpusReader(notes / "a.txt", text_as=None)
    assert "a.txt: each line is a document. With --text-as file" in capsys.readouterr().err
    assert [d.doc_id for batch in reader.batches() for d in batch.documents] == [
        "a.txt#1",
        "a.txt#2",
    ]
    reader = CorpusReader(notes / "a.txt", text_as="file")
    [document] = [d for batch in reader.batches() for d in batch.documents]
    assert (document.doc_id, document.title, document.text) == ("a.txt", "a.txt", "one\ntwo\n")


def read_below(root: Path | None, *sources: str | Path) -> list[Document]:
    reader = CorpusReader(sources, root=root)
    return [document for batch in reader.batches() for document in batch.documents]


def test_ids_below_a_root_are_those_of_the_root(notes: Path, tmp_path: Path) -> None:
    for source in (notes / "sub", notes / "sub" / "g.htm", f"{notes}/sub/g*", f"{notes}/**/g.htm"):
        document = next(d for d in read_below(notes, source) if d.title == "g.htm")
        assert (document.doc_id, document.metadata["path"]) == ("sub/g.htm", "sub/g.htm")
    (tmp_path / "link").symlink_to(notes)
    assert read_below(notes, tmp_path / "link" / "b.md")[0].doc_id == "b.md"
    assert read_below(tmp_path / "link", notes / "b.md")[0].doc_id == "b.md"


def test_outside_the_root_ids_follow_the_folder_named_and_paths_are_absolute(
    notes: Path, tmp_path: Path
) -> None:
    for root in (None, tmp_path / "other", notes / "sub"):
        documents = read_below(root, notes / "b.md")
        assert documents[0].doc_id == "b.md"
        assert documents[0].metadata["path"] == str(notes / "b.md")
    documents = read_below(None, notes)
    assert {document.doc_id for document in documents} == set(FILES)


def test_the_reader_tells_the_common_folder(notes: Path) -> None:
    assert CorpusReader(notes).root == notes
    assert CorpusReader([notes / "sub" / "g.htm", notes / "sub" / "deep"]).root == notes / "sub"
    assert CorpusReader(f"{notes}/*/*.htm").root == notes
    (notes / "rows.jsonl").write_text('{"text": "a"}')
    assert CorpusReader(notes / "rows.jsonl").root is None
    assert CorpusReader(notes, root=notes / "sub").root is None


def test_what_a_folder_leaves_out_is_told(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (".hidden.md", ".git/x.md", "node_modules/x.js", "__pycache__/x.py", "v/lib/x.py"):
        (notes / name).parent.mkdir(parents=True, exist_ok=True)
        (notes / name).write_text("junk")
    (notes / "v" / "pyvenv.cfg").touch()
    Index.build([{"text": "a"}], out=notes / "sub" / "two.index", model="hashing")
    for name in ("a.png", "b.png", "sub/Makefile", "t.csv", "sub/u.jsonl.gz"):
        (notes / name).write_bytes(b"\x89PNG\0")
    assert by_id(read_all(notes)[0]) == EXPECTED
    err = capsys.readouterr().err
    assert "tables are not read with a folder; name them too: sub/u.jsonl.gz, t.csv" in err
    assert "3 files of other kinds (.png 2, without extension 1)" in err
    (notes / "t.csv").write_text("text\nrow\n")
    assert len(read_all(f"{notes}/*")[0]) == len(FILES) + 1  # a.txt and t.csv: one row each
    assert "files of other kinds are not read: 5, such as " in capsys.readouterr().err
    with pytest.raises(CorpusError, match=r"\*\.png: none of the matching files, such as .*a\.png"):
        CorpusReader(f"{notes}/*.png")


def test_content_that_is_no_text_is_a_bad_row(tmp_path: Path) -> None:
    contents = {
        "binary.md": b"\x7fELF\x01\x02\xff",
        "broken.ipynb": b"{",
        "latin.html": b'<meta charset="iso-8859-1"><p>caf\xe9',
        "latin2.html": b"<p>caf\xe9",
        "nul.txt": b"a\0b",
        "odd.html": b'<meta charset="rot13"><p>caf\xe9',
        "windows.txt": "\ufeffüber".encode("utf-16-le"),
        "windows2.txt": b"\xff\xfea",
        "zero.txt": b"",
        "zero.html": b"<script>1</script>",
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    documents, rejects, _ = read_all(tmp_path)
    assert {document.doc_id: document.text for document in documents} == {
        "latin.html": "café",
        "windows.txt": "über",
    }
    assert {Path(reject.source).name: reject.reason for reject in rejects} == {
        "binary.md:1": "invalid UTF-8 at byte 7",
        "broken.ipynb:1": "broken JSON at column 2: Expecting property name enclosed in double "
        "quotes",
        "latin2.html:1": "invalid UTF-8 at byte 7",
        "nul.txt:1": "NUL character in 'text'",
        "odd.html:1": "invalid UTF-8 at byte 29",
        "windows2.txt:1": "invalid UTF-16",
    }


def test_a_page_may_use_the_extension_of_its_encoding(tmp_path: Path) -> None:
    pages = {"iso-8859-1": ("cp1252", "“ö”"), "Shift_JIS": ("cp932", "①"), "gb2312": ("gbk", "龘")}
    pages["euc-kr"] = ("cp949", "똠")
    for name, (encoding, text) in pages.items():
        page = f'<meta charset="{name}"><p>{text}'.encode(encoding)
        (tmp_path / f"{name}.html").write_bytes(page)
    documents, _, _ = read_all(tmp_path)
    found = {document.doc_id.removesuffix(".html"): document.text for document in documents}
    assert found == {name: text for name, (_, text) in pages.items()}


def test_names_of_all_characters(tmp_path: Path) -> None:
    names = ["a\nb.md", "tab\t.txt", "\x1b[31mred.md", "ü/ß ñ.md", "#1 50%.md", "x" * 250 + ".md"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    documents, rejects, _ = read_all(tmp_path)
    assert {document.doc_id for document in documents} == set(names)
    assert not rejects


def test_a_line_of_ten_megabytes(tmp_path: Path) -> None:
    for name in ("a.md", "b.rst", "c.html", "d.py"):
        (tmp_path / name).write_text("# " * 5_000_000)
    documents, _, _ = read_all(tmp_path)
    assert {document.doc_id: len(document.text) > 9_999_990 for document in documents} == {
        "a.md": True, "b.rst": True, "c.html": True, "d.py": True,
    }  # fmt: skip
    assert [document.title for document in documents] == ["a.md", "b.rst", "c.html", "d.py"]


def test_the_fingerprint_follows_the_bytes_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("text")
    [first], _, _ = read_all(path)
    os.utime(path, (0, 0))
    [touched], _, _ = read_all(path)
    path.write_text("other")
    [changed], _, _ = read_all(path)
    assert first.fingerprint == touched.fingerprint == fingerprint(b"text")
    assert first.metadata["modified"] != touched.metadata["modified"]
    assert changed.fingerprint != first.fingerprint


def test_a_time_that_no_date_can_hold_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("text")
    os.utime(path, (0, 1 << 40))  # the year 36812
    if path.stat().st_mtime > 1 << 39:  # not every file system holds such a time
        [document], _, _ = read_all(path)
        assert "modified" not in document.metadata


def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.md").write_text("text")
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(CorpusError, match="sub: cannot be listed: Permission denied"):
        list_files(tmp_path)
    failed: list[Path] = []
    listing = list_files(tmp_path, on_unlisted=lambda path, error: failed.append(path))
    assert (listing.names, listing.unlisted) == (["a.md"], ["sub"])
    assert failed == [tmp_path / "sub"]


def test_the_extensions_are_distinct_and_lower_case() -> None:
    assert all(suffix == suffix.lower() and suffix.startswith(".") for suffix in KINDS)


def test_a_choice_of_columns_keeps_the_path(notes: Path) -> None:
    reader = CorpusReader(notes / "b.md", metadata_fields=["year"], columns={"year": "int64"})
    [document] = [d for batch in reader.batches() for d in batch.documents]
    assert document.metadata == {"path": "b.md"}
