import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.tokens import chunking
from sbert_search.tokens.chunking import split_by_pieces, windows

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


@given(st.text(st.sampled_from("abc ., \n"), max_size=300), st.integers(1, 6), st.integers(20, 80))
def test_a_text_cut_piece_by_piece_gives_the_passages_of_the_whole(
    text: str, capacity: int, piece_chars: int
) -> None:
    words = re.compile(r"\w+")

    def split(part: str) -> list[tuple[int, int]]:
        offsets = [match.span() for match in words.finditer(part)]
        return windows(offsets, range(len(offsets)), len(part), capacity)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunking, "PIECE_CHARS", piece_chars)
        assert split_by_pieces(text, split) == split(text)


@given(st.text(st.sampled_from("abc \n"), max_size=300), st.integers(1, 40))
def test_pieces_make_the_text_again_and_end_before_blanks(text: str, n_chars: int) -> None:
    parts = list(chunking.pieces(text, n_chars))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= n_chars
    for part, after in pairwise(parts):
        assert after[0] in " \n" or not re.search("[ \n]", part[1:])
