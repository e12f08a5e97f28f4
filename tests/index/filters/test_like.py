"""LIKE: the whole text, character by character, whatever the pattern's shape."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from sbert_search.index.filters.comparisons import MAX_PATTERN, like

TEXTS = ["", "a", "ab", "abc", "A", "a%b", "a_b", "a\\b", "\\", "%", "a\nb", "é", "É", "🙂", "x.y"]


def matched(pattern: str, *, ignore_case: bool = False) -> list[str]:
    column = pa.array([*TEXTS, None], pa.large_string())
    *marks, of_null = like(pattern, ignore_case=ignore_case)(column).to_pylist()
    assert of_null is None
    return [text for text, mark in zip(TEXTS, marks, strict=True) if mark]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", [""]),
        ("%", TEXTS),
        ("%%", TEXTS),
        ("a", ["a"]),
        ("a%", ["a", "ab", "abc", "a%b", "a_b", "a\\b", "a\nb"]),
        ("%b", ["ab", "a%b", "a_b", "a\\b", "a\nb"]),
        ("%b%", ["ab", "abc", "a%b", "a_b", "a\\b", "a\nb"]),
        ("_", ["a", "A", "\\", "%", "é", "É", "🙂"]),
        ("a_b", ["a%b", "a_b", "a\\b", "a\nb"]),
        ("a\\%b", ["a%b"]),
        ("%\\%%", ["a%b", "%"]),
        ("a\\_b", ["a_b"]),
        ("a\\\\b", ["a\\b"]),
        ("\\\\", ["\\"]),
        ("\\a%\\b", ["ab", "a%b", "a_b", "a\\b", "a\nb"]),
        ("x.y", ["x.y"]),
        ("._.", []),
    ],
)
def test_like_matches_whole_texts(pattern: str, expected: list[str]) -> None:
    assert matched(pattern) == expected


def test_case_is_ignored_on_demand() -> None:
    assert matched("A", ignore_case=True) == ["a", "A"]
    assert matched("É", ignore_case=True) == ["é", "É"]
    assert matched("%B", ignore_case=True) == matched("%b")


def test_patterns_that_cannot_be_used_say_why() -> None:
    with pytest.raises(ValueError, match="a backslash at the end"):
        like("a\\", ignore_case=False)
    with pytest.raises(ValueError, match=re.escape("more than 10,000 characters")):
        like("_" * (MAX_PATTERN + 1), ignore_case=False)


@pytest.mark.parametrize("part", ["_", "a", "é", "%a", "%_a", "\\%", "🙂"])
def test_the_longest_patterns_match(part: str) -> None:
    pattern = part * (MAX_PATTERN // len(part))
    text = "a%🙂é" * (MAX_PATTERN // 8)
    for ignore_case in (False, True):
        marks = like(pattern, ignore_case=ignore_case)(pa.array([text, ""], pa.large_string()))
        assert marks.to_pylist() == [False, False]
