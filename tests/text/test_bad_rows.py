"""A bad row stops with place, reason, value and remedy, or is skipped and counted.

Each case is a file with one good row and one bad one; what follows the bad row, if anything, is
good again.
"""

from __future__ import annotations

import gzip
import lzma
from dataclasses import dataclass
from pathlib import Path

import pytest

from sbert_search.errors import CorpusError
from sbert_search.text.documents import CorpusReader
from tests.text.accounting import read_all, zstd

GOOD = b'{"_id": "ok", "text": "fine", "n": 1, "s": "x"}\n'
HEADER = b"id,text,n\n"
LONG = b"x" * ((64 << 20) + 1)


@dataclass(frozen=True)
class Case:
    name: str
    content: bytes
    place: str
    message: str
    kept: int = 1


def jsonl(line: bytes, message: str) -> Case:
    return Case("c.jsonl", GOOD + line + b"\n" + GOOD, "2", message, kept=2)


def delimited(line: bytes, message: str, kept: int = 2) -> Case:
    return Case("c.csv", HEADER + b"ok,fine,1\n" + line + b"\nok,fine,1\n", "3", message, kept)


def row(fields: str) -> bytes:
    return b'{"_id": "b", "text": "t", %s}' % fields.encode()


CASES = {
    # JSON
    "cut object": jsonl(b'{"_id": "b", "te', "broken JSON at column 14: Unterminated string"),
    "no colon": jsonl(b'{"_id" "b"}', "broken JSON at column 8: Expecting ':' delimiter"),
    "trailing comma": jsonl(b'{"_id": "b",}', "broken JSON at column 13"),
    "two objects": jsonl(b'{"_id": "b"} {}', "broken JSON at column 14: Extra data"),
    "single quotes": jsonl(b"{'_id': 'b'}", "broken JSON at column 2"),
    "no JSON": jsonl(b"hello", "broken JSON at column 1: Expecting value ('hello')"),
    "array": jsonl(b'["b", "text"]', "the row is not a JSON object (['b', 'text'])"),
    "string": jsonl(b'"text"', "the row is not a JSON object ('text')"),
    "null": jsonl(b"null", "the row is not a JSON object"),
    "NaN": jsonl(row('"n": NaN'), "NaN is not a JSON value; write null"),
    "Infinity": jsonl(row('"n": -Infinity'), "-Infinity is not a JSON value"),
    "overflow": jsonl(row('"n": 1e999'), "column 'n' has a value that is not finite (inf)"),
    "deep": jsonl(b'{"_id": "b", "text": ' + b"[" * 100_000, "JSON nested too deep"),
    "digits": jsonl(b'{"_id": ' + b"9" * 5000 + b"}", "broken JSON: an integer is too long"),
    "raw NUL": jsonl(b'{"_id": "b", "text": "a\0b"}', "broken JSON at column 24: Invalid control"),
    "escaped NUL": jsonl(b'{"_id": "b", "text": "a\\u0000b"}', r"NUL character in 'text' ('a\x00b"),
    "invalid UTF-8": jsonl(b'{"_id": "b", "text": "caf\xe9"}', "invalid UTF-8 at byte 26 ("),
    "encoded surrogate": jsonl(b'{"_id": "\xed\xa0\x80"}', "invalid UTF-8 at byte 10"),
    "UTF-16": jsonl('\ufeff{"_id"}'.encode("utf-16-le"), "is it UTF-16?"),
    "lone surrogate": jsonl(b'{"_id": "b", "text": "\\ud800"}', r"in 'text' ('\ud800')"),
    "surrogate id": jsonl(b'{"_id": "\\udfff", "text": "t"}', "a lone surrogate in '_id'"),
    "surrogate title": jsonl(b'{"_id": "b", "title": "\\ud800"}', "a lone surrogate in 'title'"),
    "surrogate value": jsonl(b'{"_id": "b", "text": "t", "s": "\\ud800"}', "surrogate in 's'"),
    "surrogate name": jsonl(b'{"_id": "b", "text": "t", "\\ud800": 1}', r"surrogate in '\ud800'"),
    "nested surrogate": jsonl(b'{"_id": "b", "text": "t", "s": ["\\ud800"]}', "surrogate in 's'"),
    # fields
    "no id": jsonl(b'{"text": "t"}', "the row has no id ('_id' is missing or empty)"),
    "null id": jsonl(b'{"_id": null, "text": "t"}', "the row has no id ('_id' is missing"),
    "empty id": jsonl(b'{"_id": "", "text": "t"}', "the row has no id ('_id' is missing or empty)"),
    "blank id": jsonl(b'{"_id": " ", "text": "t"}', "'_id' is blank (' ')"),
    "float id": jsonl(b'{"_id": 1.5, "text": "t"}', "a string or an integer (1.5)"),
    "bool id": jsonl(b'{"_id": true, "text": "t"}', "'_id' is of type bool; an id must be"),
    "list id": jsonl(b'{"_id": ["b"], "text": "t"}', "'_id' is of type list; an id must be"),
    "long id": jsonl(b'{"_id": "' + b"i" * 1025 + b'", "text": "t"}', "'_id' is longer than 1024"),
    "blank": jsonl(b'{"_id": "b", "title": " ", "text": "\\n"}', "blank document: 'title'"),
    "no text": jsonl(b'{"_id": "b"}', "blank document"),
    "number as text": jsonl(b'{"_id": "b", "text": 5}', "'text' is of type int; it must be"),
    "list as text": jsonl(b'{"_id": "b", "text": ["t"]}', "'text' is of type list; it must be"),
    "object as title": jsonl(b'{"_id": "b", "title": {}, "text": "t"}', "'title' is of type dict"),
    "other type": jsonl(row('"n": "one"'), "int64, this value is of type string ('one')"),
    "number for string": jsonl(row('"s": 5'), "'s' is of type string, this value is of type int64"),
    "bool for number": jsonl(row('"n": true'), "int64, this value is of type bool (True)"),
    "beyond 64 bits": jsonl(row(f'"n": {1 << 63}'), "column 'n' has an integer beyond 64 bits"),
    "many columns": jsonl(
        row(", ".join(f'"k{n}": 1' for n in range(1001))),
        "more than 1000 metadata columns",
    ),
    # containers
    "long line": Case("c.jsonl", GOOD + LONG + b"\n" + GOOD, "2", "line longer than 64 MiB", 2),
    "long last line": Case("c.txt", b"fine\n" + LONG, "2", "line longer than 64 MiB"),
    "cut gzip": Case("c.jsonl.gz", gzip.compress(GOOD)[:-4], "2", "the file is damaged here"),
    "flipped gzip": Case("c.jsonl.gz", gzip.compress(GOOD)[:-8] + bytes(8), "2", "lost: CRC check"),
    "no gzip": Case("c.jsonl.gz", GOOD, "1", "the rest is lost: Not a gzipped file", 0),
    "cut xz": Case("c.jsonl.xz", lzma.compress(GOOD)[:-9], "2", "the file is damaged here"),
    "cut zstd": Case("c.jsonl.zst", zstd(GOOD)[:-9], "1", "the file is damaged here", 0),
    "no zstd": Case("c.jsonl.zst", GOOD, "1", "the file is damaged here", kept=0),
    # text
    "text UTF-8": Case("c.txt", b"fine\ncaf\xe9\nfine\n", "2", "invalid UTF-8 at byte 4 (", 2),
    "text NUL": Case("c.txt", b"fine\na\0b\n", "2", "NUL character in 'text'"),
    # CSV and TSV
    "few cells": delimited(b"b,t", "2 cells where the header has 3 ('b')"),
    "many cells": delimited(b"b,t,1,2", "4 cells where the header has 3 ('b')"),
    "no id cell": delimited(b",t,1", "the row has no id ('id' is missing or empty)"),
    "blank cells": delimited(b"b,,1", "blank document"),
    "stray quote": delimited(b'b,"t" x,1', "broken record: text after the closing quote"),
    "bare CR": delimited(b"b,t\rx,1", "broken record: a carriage return outside quotes"),
    "CSV NUL": delimited(b"b,a\0b,1", "NUL character in 'text'"),
    "CSV UTF-8": delimited(b"b,caf\xe9,1", "invalid UTF-8 or a lone surrogate in 'text'"),
    "CSV UTF-8 in metadata": delimited(b"b,t,\xff", "invalid UTF-8 or a lone surrogate in 'n'"),
    "open quote": delimited(b'b,"never closed,1', "broken record: a quote is not closed", kept=1),
    "long CSV line": delimited(b"b," + LONG + b",1", "line longer than 64 MiB"),
    "cut CSV": Case("c.csv.gz", gzip.compress(HEADER + b"ok,a,1\n")[:-8], "3", "is damaged here"),
    "TSV cells": Case("c.tsv", b"id\ttext\nok\tfine\nb\n", "3", "1 cells where the header has 2"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_bad_row_is_named_or_skipped(tmp_path: Path, case: Case) -> None:
    path = tmp_path / case.name
    path.write_bytes(case.content)
    with pytest.raises(CorpusError) as caught:
        CorpusReader(path).survey()
    assert f"{path}:{case.place}: " in str(caught.value)
    assert case.message in str(caught.value)
    assert str(caught.value).endswith(". Fix it, or pass on_error='skip'.")
    documents, rejects, _ = read_all(path)
    assert len(documents) == case.kept
    (reject,) = rejects
    assert reject.source == f"{path}:{case.place}"
    assert f"{reject.reason} ({reject.value})" in str(caught.value) or not reject.value
    assert len(reject.value) <= 80
    reject.reason.encode(), reject.value.encode()


def test_a_line_of_ten_megabytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(GOOD + b'{"_id": "b", "text": "' + b"x" * 10_000_000 + b'"}\n')
    documents, rejects, _ = read_all(path)
    assert not rejects
    assert len(documents[1].text) == 10_000_000


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(b"\n" + GOOD + b"  \r\n\t\n" + GOOD + b"\n\n")
    documents, _, survey = read_all(tmp_path / "c.jsonl")
    assert [doc.source.rpartition(":")[2] for doc in documents] == ["2", "5"]
    assert survey.rows == 2
    (tmp_path / "c.csv").write_bytes(HEADER + b"\nok,fine,1\n\n\nok,fine,2\n")
    documents, _, survey = read_all(tmp_path / "c.csv")
    assert [doc.source.rpartition(":")[2] for doc in documents] == ["3", "6"]
