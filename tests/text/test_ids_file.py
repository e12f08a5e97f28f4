"""An ids file gives exactly the ids written in it, whatever their characters."""

from __future__ import annotations

import io
import sys
import unicodedata

import pytest

from sbert_search.errors import CorpusError
from sbert_search.text.ids import read_ids

SEPARATORS = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if character != "\n" and (character.isspace() or unicodedata.category(character) in "ZlZpZs")
]


def test_the_separators_are_all_that_python_and_unicode_know() -> None:
    assert {*"\x0b\x0c\r\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\u3000 \t"} <= set(SEPARATORS)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_separator_but_a_line_end_is_part_of_an_id(end: str) -> None:
    ids = [f"{left}{s}{right}" for s in SEPARATORS for left in "a " for right in "b "]
    ids += [f"{s}a" for s in SEPARATORS]
    data = "".join(f"{doc_id}{end}" for doc_id in ids)
    assert read_ids(io.BytesIO(data.encode()), "ids") == ids


@pytest.mark.parametrize(
    ("data", "ids"),
    [
        (b"\xef\xbb\xbfa\nb", ["a", "b"]),
        (b"a\n\n\r\nb\n\n", ["a", "b"]),
        (b"a\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"a\rb\r\n", ["a\rb"]),
        (b" a \n  \n", [" a ", "  "]),
        (b"a\r\r\n", ["a\r"]),
        (b"", []),
    ],
)
def test_marks_blanks_and_line_ends(data: bytes, ids: list[str]) -> None:
    assert read_ids(io.BytesIO(data), "ids") == ids


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\nb\xff\n", r"ids\.txt:2: invalid UTF-8 at byte 2"),
        ("a\nb\n".encode("utf-16"), r"ids\.txt:1: invalid UTF-8 at byte 1; is it UTF-16\?"),
    ],
)
def test_a_file_that_is_no_utf_8_is_refused_by_line(data: bytes, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        read_ids(io.BytesIO(data), "ids.txt")
