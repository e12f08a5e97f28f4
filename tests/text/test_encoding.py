"""Text files in other encodings than UTF-8, of which the user names the encoding."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from sbert_search import Index
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.text.documents import CorpusReader
from sbert_search.text.formats.files import FileName, Reading, fingerprint
from tests.cli.process import sbert_search

FILES = {
    "a.csv": '_id;text;Größe\n1;"Die Mühle\nam Fluß";groß\n2;Öfen;\n',
    "b.tsv": "_id\ttext\n3\tBäcker\n",
    "c.jsonl": '{"_id": "4", "text": "Mühlstein"}\n{"_id": "5", "text": "Teig"}\n',
    "d.json": '[{"_id": "6", "text": "Weißbrot"}]',
    "e.txt": "Körner\nHefe\n",
    "f.md": "# Überschrift\n\nSäcke\n",
    "g.html": "<title>Käse</title><p>Ein Stück",
    "h.rst": "Räder\n=====\n",
}


def documents(paths: list[Path], encoding: str | None) -> dict[str, tuple[str, str, object]]:
    reader = CorpusReader(paths, reading=Reading(encoding), root=None)
    found = [document for batch in reader.batches() for document in batch.documents]
    return {each.doc_id: (each.title, each.text, each.metadata.get("Größe")) for each in found}


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le", "utf-16-be", "cp850"])
def test_each_format_is_read_in_its_encoding(tmp_path: Path, encoding: str) -> None:
    plain, other = tmp_path / "plain", tmp_path / "other"
    for folder, name in ((plain, "utf-8"), (other, encoding)):
        folder.mkdir()
        for file, text in FILES.items():
            (folder / file).write_bytes(text.encode(name))
        (folder / "i.csv.gz").write_bytes(gzip.compress("_id,text\n7,Ähre\n".encode(name)))
    names = sorted(each.name for each in plain.iterdir())
    expected = documents([plain / name for name in names], None)
    assert expected["1"] == ("", "Die Mühle\nam Fluß", "groß")
    assert expected["7"] == ("", "Ähre", None)
    assert documents([other / name for name in names], encoding) == expected
    mixed = [(plain if n % 2 else other) / name for n, name in enumerate(names)]
    assert documents(mixed, encoding) == expected  # what is UTF-8 is read as UTF-8


def test_an_invalid_byte_rejects_its_row_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"_id,text\n1,M\xfchle\n2,\x81\n3,Fl\xfcsse\n")
    reader = CorpusReader(tmp_path / "a.csv", reading=Reading("cp1252"), on_error="skip")
    (batch,) = reader.batches()
    assert [each.text for each in batch.documents] == ["Mühle", "Flüsse"]
    assert [(each.source[-7:], each.reason) for each in batch.rejects] == [
        ("a.csv:3", "invalid CP1252 or a lone surrogate in 'text'")
    ]
    (tmp_path / "b.txt").write_bytes("eins\nzwei\n".encode("utf-16")[:-1])
    reader = CorpusReader(tmp_path / "b.txt", reading=Reading("utf-16"), on_error="skip")
    (batch,) = reader.batches()
    assert "the file is damaged here" in batch.rejects[0].reason


MIXED = {
    "a.csv": (b"_id,text\n1,caf\xe9\n", '2,"Herr Müller"\n3,x\n4,"Öl"\n'),
    "b.jsonl": (b'{"_id": "1", "text": "caf\xe9"}\n\n', '{"_id": "2", "text": "Müller"}\n'),
    "c.txt": (b"caf\xe9\nplain\n", "Müller\n"),
    "d.md": (b"caf\xe9\nplain\n", "Müller\n"),
    "e.html": (b"caf\xe9\nplain\n", "Müller\n"),
}


@pytest.mark.parametrize("name", MIXED)
def test_a_line_in_utf8_of_a_file_in_another_encoding_is_named_once(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, (begin, rest) = tmp_path / name, MIXED[name]
    path.write_bytes(begin + rest.encode())
    documents([path], "cp1252")
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0
    assert said.startswith(f"{path}:3: '")
    assert "MÃ¼ller" in said
    assert "Müller" in said
    such = " (2 such lines)" if name == "a.csv" else ""
    assert f" in UTF-8{such}, but the file is read as cp1252. Write the whole" in said
    path.write_bytes((begin.decode("cp1252") + rest).encode())
    documents([path], "cp1252")  # a file in UTF-8
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("encoding", "text", "warned"),
    [
        ("cp1252", "Привет", True),  # no letter of it is in the encoding
        ("cp1252", "â", True),
        ("cp1251", "Её".encode("cp1251").decode(), False),  # the Ÿ of UTF-8 is not in cp1251
        ("shift_jis", "水車".encode("shift_jis"), False),
        ("utf-8", "Müller", False),
        ("utf-16-le", "Müller".encode("utf-16-le"), False),
    ],
)
def test_other_lines_are_not_taken_for_utf8(
    tmp_path: Path,
    encoding: str,
    text: str | bytes,
    warned: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xe9\xff\n" + (text.encode() if isinstance(text, str) else text))
    reader = CorpusReader(path, reading=Reading(encoding), on_error="skip", text_as="lines")
    assert reader.survey().rows
    assert ("in UTF-8" in capsys.readouterr().err) is warned


def test_a_page_that_names_another_encoding_is_read_in_that_one(tmp_path: Path) -> None:
    pages = {
        "a.html": '<meta charset="koi8-r"><p>Мельница'.encode("koi8-r"),
        "b.html": '<meta charset="utf-8"><p>Mühle'.encode("cp1252"),
        "c.html": "\ufeffÖfen".encode("utf-16-be"),
    }
    for name, data in pages.items():
        (tmp_path / name).write_bytes(data)
    found = documents([tmp_path], "cp1252")
    assert [text for _, text, _ in found.values()] == ["Мельница", "Mühle", "Öfen"]


def test_the_error_names_the_option_and_the_index_keeps_it(tmp_path: Path) -> None:
    source, path = tmp_path / "a.csv", tmp_path / "index"
    source.write_bytes("_id;text;Geändert am\n1;Öfen;x\n".encode("cp1252"))
    refused = sbert_search("index", "build", source, "--out", path, "--model", "hashing")
    assert refused.code == 1
    assert "name its encoding, such as --encoding cp1252, or convert the file" in refused.err
    with pytest.raises(CorpusError, match="such as encoding='cp1252', or convert"):
        Index.build(source, model="hashing")
    built = sbert_search(
        "index", "build", source, "--out", path, "--model", "hashing", "--encoding", "cp1252"
    )
    assert built.code == 0
    source.write_bytes("_id;text;Geändert am\n2;Mühlen;x\n".encode("cp1252"))
    assert sbert_search("index", "add", path, source).code == 0
    assert sorted(each.text for each in Index.open(path)) == ["Mühlen", "Öfen"]


@pytest.mark.parametrize("encoding", ["nosuch", "hex", "rot13", "undefined", ""])
def test_an_unknown_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(ConfigError, match=f"encoding is '{encoding}'; name one that Python knows"):
        Index.build([{"text": "x"}], model="hashing", encoding=encoding)


@pytest.mark.parametrize("name", ["a.pdf", "a.docx", "a.ipynb"])
def test_files_that_are_no_text_are_not_read_again(name: str) -> None:
    data, path = b"%PDF \xff", Path(name)
    file = FileName(path, name, name, name, reading=Reading("cp1252", "main"))
    assert fingerprint(data, file) == fingerprint(data)
    page = replace(file, path=path.with_suffix(".html"))
    assert fingerprint(data, page) != fingerprint(data)


def test_a_sync_reads_files_again_in_another_encoding(tmp_path: Path) -> None:
    folder, path = tmp_path / "notes", tmp_path / "index"
    folder.mkdir()
    (folder / "a.md").write_bytes("Größe".encode("cp1252"))
    (folder / "b.md").write_text("Mühle")
    index = Index.build(folder, out=path, model="hashing", encoding="cp850")
    assert "Größe" not in {each.text for each in index}
    report = index.sync(folder, encoding="cp1252")
    assert (report.replaced, report.unchanged) == (("a.md",), 1)
    assert {each.text for each in index} == {"Größe", "Mühle"}
    refused = sbert_search("index", "sync", tmp_path / "plain", folder, "--model", "hashing")
    assert refused.code == 3
    assert "name their encoding, such as --encoding cp1252" in refused.err
    made = sbert_search(
        "index", "sync", tmp_path / "other", folder, "--model", "hashing", "--encoding", "cp1252"
    )
    assert made.code == 0
    assert sbert_search("index", "sync", tmp_path / "other", folder).code == 0  # it is stored
    assert {each.text for each in Index.open(tmp_path / "other")} == {"Größe", "Mühle"}
