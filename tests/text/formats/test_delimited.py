from __future__ import annotations

import csv
import io

import pytest

from sbert_search.text.formats.lines import read_delimited
from sbert_search.text.formats.rows import RawRow, Reject


def read(text: str, delimiter: str | None = None) -> list[dict[str, object]]:
    rows = list(read_delimited(io.BytesIO(text.encode()), "c.csv", delimiter=delimiter))
    return [dict(row.values) for row in rows if isinstance(row, RawRow)]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_separator_is_taken_from_the_header(delimiter: str) -> None:
    lines = [["id", "text", "year"], ["a", "one, two; three", "1999"]]
    text = "\n".join(delimiter.join(f'"{cell}"' for cell in line) for line in lines)
    assert read(text) == [{"id": "a", "text": "one, two; three", "year": "1999"}]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("text\na;b\n", [{"text": "a;b"}]),
        ("\ufeffid;text\r\na;b\r\n", [{"id": "a", "text": "b"}]),
        ('"a;b;c",text\n1,2\n', [{"a;b;c": "1", "text": "2"}]),
        ("id;text,more\n1;2,3\n", [{"id;text": "1;2", "more": "3"}]),
        ("", []),
        ("\n\nid;text\n1;2\n", [{"id": "1", "text": "2"}]),
    ],
)
def test_commas_win_where_the_header_does_not_decide(
    text: str, rows: list[dict[str, object]]
) -> None:
    assert read(text) == rows


@pytest.mark.parametrize("named", ["sep=;", '"sep=;"', "SEP=;", "\ufeffsep=;"])
def test_a_first_line_of_excel_names_the_separator(named: str) -> None:
    data = f"{named}\r\nid,a;text\r\n1;2,3,4\r\n5;".encode()
    rows = list(read_delimited(io.BytesIO(data), "c.csv", delimiter=None))
    assert [row.source for row in rows] == ["c.csv:3", "c.csv:4"]
    values = [dict(row.values) for row in rows if isinstance(row, RawRow)]
    assert values == [{"id,a": "1", "text": "2,3,4"}, {"id,a": "5", "text": None}]


def test_rows_of_empty_cells_are_skipped_and_keep_their_lines() -> None:
    data = b';;\nid;text;year\n;;\n1;a;\n"";;;;\n2;b;3\n;;\n'
    rows = list(read_delimited(io.BytesIO(data), "c.csv", delimiter=None))
    assert [row.source for row in rows] == ["c.csv:4", "c.csv:6"]
    assert read('text\n""\na\n') == [{"text": None}, {"text": "a"}]  # written on purpose


def test_a_quote_of_a_tsv_takes_no_rows() -> None:
    data = b'text\tlabel\n" he said\t1\nmiddle\t1\nfoo "\t0\n"a\nb\tc"\t1\n'
    bad, good = read_delimited(io.BytesIO(data), "c.tsv", delimiter="\t")
    assert isinstance(bad, Reject)
    assert "c.tsv:2: a quote is open from here to line 4" in str(bad)
    assert isinstance(good, RawRow)
    assert (good.source, dict(good.values)) == ("c.tsv:5", {"text": "a\nb\tc", "label": "1"})


def test_a_given_separator_is_kept() -> None:
    assert read("a;b\n1;2\n", ",") == [{"a;b": "1;2"}]


def test_a_larger_limit_of_the_user_stays() -> None:
    users = csv.field_size_limit(1 << 30)
    try:
        read("id,text\n1,2\n")
        assert csv.field_size_limit() == 1 << 30
        csv.field_size_limit(10)
        assert read("id,text\n1,more than ten characters\n")[0]["id"] == "1"
    finally:
        csv.field_size_limit(users)
