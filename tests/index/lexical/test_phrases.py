"""Phrases: consecutive words, compared in lower case."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.search import words as phrases
from sbert_search.search.words import Phrase


@pytest.mark.parametrize(
    ("phrase", "text", "occurs"),
    [
        ("water mill", "The old Water  Mill.", True),
        ("water mill", "water, mill", True),
        ("water mill", "the watermill", False),
        ("water mill", "water mills", False),
        ("water mill", "fresh-water mill", True),
        ("water mill", "water old mill", False),
        ("mill", "mills and mill", True),
        ("to be or not", "to be, or NOT to be", True),
        ("e-mail", "an E-Mail", True),
        ("e-mail", "email", False),
        ("cafe\u0301", "the caf\u00e9", True),
        ("C++", "in C, not D", True),
        ("a_b", "a_b", True),
        ("a b", "a_b", False),
    ],
)
def test_occurrences(phrase: str, text: str, occurs: bool) -> None:
    assert Phrase(phrase).occurs_in(text) is occurs


WORDS = st.lists(st.sampled_from(["a", "ab", "b", "ba"]), min_size=1)


@given(WORDS.map(" ".join), st.lists(st.sampled_from(["a", "ab", "b", "ba", "-", ". "])))
def test_a_phrase_is_a_run_of_whole_words(phrase: str, parts: list[str]) -> None:
    text = "".join(parts)
    wanted, words = phrase.split(), re.findall(r"\w+", text)
    windows = (words[i : i + len(wanted)] for i in range(len(words)))
    assert Phrase(phrase).occurs_in(text) == any(window == wanted for window in windows)


def test_long_texts_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases, "PIECE_CHARS", 10)
    text = "one two three four five six seven eight"
    assert Phrase("TWO three").occurs_in(text)
    assert Phrase("five six seven").occurs_in(text)
    assert not Phrase("two four").occurs_in(text)
