from __future__ import annotations

import csv
import io

import pytest

from sbert_search.text.formats.lines import read_delimited
from sbert_search.text.formats.rows import RawRow


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
