import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.text.tokens import chunking as chunking_module
from sbert_search.text.tokens.chunking import Border, Chunking, borders, split_by_pieces, windows

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


def test_a_cut_falls_between_words() -> None:
    text = "abcdef abcdef abcdef"
    offsets, words = pieces(text)
    spans = windows(offsets, words, len(text), 3)
    assert [text[start:end] for start, end in spans] == ["abcdef ", "abcdef ", "abcdef"]


def test_a_word_longer_than_a_passage_is_cut_inside() -> None:
    text = "abcabcabcabc"
    offsets, words = pieces(text)
    assert windows(offsets, words, len(text), 2) == [(0, 6), (6, 12)]


@given(st.text(st.sampled_from("abc ., \n"), max_size=300), st.integers(1, 6), st.integers(20, 80))
def test_a_text_cut_piece_by_piece_gives_the_passages_of_the_whole(
    text: str, capacity: int, piece_chars: int
) -> None:
    words = re.compile(r"\w+")

    def split(part: str) -> list[tuple[int, int]]:
        offsets = [match.span() for match in words.finditer(part)]
        return windows(offsets, range(len(offsets)), len(part), capacity)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunking_module, "PIECE_CHARS", piece_chars)
        assert split_by_pieces(text, split) == split(text)


@given(st.text(st.sampled_from("abc \n"), max_size=300), st.integers(1, 40))
def test_pieces_make_the_text_again_and_end_before_blanks(text: str, n_chars: int) -> None:
    parts = list(chunking_module.pieces(text, n_chars))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= n_chars
    for part, after in pairwise(parts):
        assert after[0] in " \n" or not re.search("[ \n]", part[1:])


def cut(text: str, capacity: int, overlap: int = 0) -> list[str]:
    """Cut a text at borders into passages of at most ``capacity`` words and marks."""
    offsets = [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]
    spans = Chunking(overlap=overlap).spans(text, offsets, range(len(offsets)), capacity)
    return [text[start:end] for start, end in spans]


def test_a_sentence_that_ends_in_the_second_half_ends_the_passage() -> None:
    text = "A b. C d e f. G h i j k l. M n."
    #      tokens: 3      5         7       3
    assert cut(text, 10) == ["A b. C d e f. ", "G h i j k l. M n."]
    # The first sentence ends in the first half of seven tokens, so it does not end a passage.
    assert cut(text, 7) == ["A b. C d e ", "f. G h i j ", "k l. M n."]


def test_a_heading_outranks_a_paragraph_and_a_paragraph_a_sentence() -> None:
    text = "a b c d e.\n# F g\n\nH i. J k l.\n\nM n o p. Q r s t u v w x"
    assert cut(text, 10)[0] == "a b c d e.\n"
    text = text.replace("# F", "f f")
    assert cut(text, 10)[0] == "a b c d e.\nf f g\n\n"
    text = text.replace("\n\n", "\n")
    assert cut(text, 11)[0] == "a b c d e.\nf f g\n"  # before "H": a line


def test_what_fits_stays_whole() -> None:
    assert cut("One two. # Three\n\nfour", 6) == ["One two. # Three\n\nfour"]


def test_the_last_two_passages_are_of_about_the_same_size() -> None:
    text = " ".join("abcdefghijkl")
    assert cut(text, 10) == ["a b c d e f ", "g h i j k l"]
    assert cut(text, 6) == ["a b c d e f ", "g h i j k l"]
    assert cut(text, 5) == ["a b c d e ", "f g h i ", "j k l"]


def test_an_overlap_begins_with_a_sentence_or_else_with_a_word() -> None:
    text = "a b c d e. F g. H i j k l m n o p"
    assert cut(text, 10, 3) == ["a b c d e. F g. ", "F g. H i j k l ", "j k l m n o p"]
    assert cut(text.replace(".", " ,"), 10, 3)[1].startswith("g , H i")


def test_a_passage_that_begins_with_a_heading_shares_nothing() -> None:
    text = "a b c d e f g h i\n# J\nk l m n o p q r s t"
    assert cut(text, 12, 4) == ["a b c d e f g h i\n", "# J\nk l m n o p q r s t"]


def test_a_word_too_long_for_a_passage_is_cut_at_borders_too() -> None:
    offsets = [(n, n + 1) for n in range(10)]
    spans = Chunking(overlap=1).spans("a" * 10, offsets, [0] * 10, 4)
    assert spans == [(0, 4), (3, 7), (6, 10)]


TEXTS = st.text(st.sampled_from("abAB .\n#"), max_size=300)


@given(TEXTS, st.integers(1, 20), st.integers(0, 12))
def test_passages_at_borders_cover_the_text_in_order(
    text: str, capacity: int, overlap: int
) -> None:
    offsets, words = pieces(text)
    spans = Chunking(overlap=overlap).spans(text, offsets, words, capacity)
    assert spans == Chunking(overlap=overlap).spans(text, offsets, words, capacity)
    assert not text or (spans[0][0], spans[-1][1]) == (0, len(text))
    for start, end in spans:
        assert sum(start <= first and last <= end for first, last in offsets) <= capacity
    for (start, end), (next_start, next_end) in pairwise(spans):
        assert start < next_start <= end < next_end
        shared = sum(next_start <= first and last <= end for first, last in offsets)
        assert shared <= min(overlap, capacity // 2)
        if borders(text).get(end) == Border.HEADING:
            assert next_start == end
    if overlap == 0:
        assert "".join(text[start:end] for start, end in spans) == text
    assert sum(end - start for start, end in spans) <= 3 * len(text) + 3 * len(spans)


@given(TEXTS, st.integers(1, 6), st.integers(0, 3), st.integers(20, 80))
def test_passages_at_borders_are_the_same_piece_by_piece(
    text: str, capacity: int, overlap: int, piece_chars: int
) -> None:
    chunking = Chunking(overlap=overlap)

    def split(part: str) -> list[tuple[int, int]]:
        offsets = [match.span() for match in re.finditer(r"[^\W\d_]|[^\w\s]", part)]
        return chunking.spans(part, offsets, range(len(offsets)), capacity)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunking_module, "PIECE_CHARS", piece_chars)
        assert chunking.split(text, split) == split(text)
