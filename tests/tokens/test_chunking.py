import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.tokens.chunking import windows

PIECE = re.compile(r"\w{1,3}|[^\w\s]")


def pieces(text: str) -> tuple[list[tuple[int, int]], list[int]]:
    """Cut words into pieces of three characters, as a subword tokenizer would."""
    offsets, words = [], []
    for number, word in enumerate(re.finditer(r"\w+|[^\w\s]", text)):
        for piece in PIECE.finditer(word.group()):
            offsets.append((word.start() + piece.start(), word.start() + piece.end()))
            words.append(number)
    return offsets, words


@given(st.text(st.sampled_from("abc ., "), max_size=200), st.integers(1, 20))
def test_passages_follow_one_another_and_cover_the_text(text: str, capacity: int) -> None:
    offsets, words = pieces(text)
    spans = windows(offsets, words, len(text), capacity)
    assert "".join(text[start:end] for start, end in spans) == text
    for start, end in spans:
        assert sum(start <= first and last <= end for first, last in offsets) <= capacity


@given(st.text(st.sampled_from("abc ., "), max_size=200), st.integers(2, 20), st.data())
def test_overlapping_passages_leave_no_gap(text: str, capacity: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, capacity - 1))
    offsets, words = pieces(text)
    spans = windows(offsets, words, len(text), capacity, overlap)
    assert not text or (spans[0][0] == 0 and spans[-1][1] == len(text))
    for (_, end), (start, _) in pairwise(spans):
        assert start <= end


def test_a_cut_falls_between_words() -> None:
    text = "abcdef abcdef abcdef"
    offsets, words = pieces(text)
    spans = windows(offsets, words, len(text), 3)
    assert [text[start:end] for start, end in spans] == ["abcdef ", "abcdef ", "abcdef"]


def test_a_word_longer_than_a_passage_is_cut_inside() -> None:
    text = "abcabcabcabc"
    offsets, words = pieces(text)
    assert windows(offsets, words, len(text), 2) == [(0, 6), (6, 12)]


def test_an_overlap_as_long_as_the_passage_is_refused() -> None:
    with pytest.raises(ValueError, match="overlap 4"):
        windows([(0, 1)], [0], 1, 4, 4)
