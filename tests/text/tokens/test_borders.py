"""The places at which a text can be cut."""

from __future__ import annotations

import pytest

from sbert_search.text.tokens.chunking import Border, borders, token_borders

MARKDOWN = """\
# Mills
A mill grinds corn. It needs water.

The river gives it.
  - one wheel
## Wind

No river? Wind will do.
"""


def starts(text: str) -> dict[str, str]:
    """Kinds of borders by the word that follows."""
    return {text[at:].split()[0]: kind.name.lower() for at, kind in borders(text).items()}


def test_headings_paragraphs_sentences_and_lines_are_borders() -> None:
    # "A mill" and "No river?" stand below a heading; nothing separates them from it.
    assert starts(MARKDOWN[2:]) == {
        "A": "line",
        "It": "sentence",
        "The": "paragraph",
        "-": "line",
        "##": "heading",
        "Wind": "sentence",
    }
    assert starts(MARKDOWN)["#"] == "heading"
    assert "A" not in starts(MARKDOWN)
    assert "No" not in starts(MARKDOWN)


@pytest.mark.parametrize(
    ("line", "is_heading"),
    [
        ("# A", True),
        ("   ###### A", True),
        ("#", True),
        ("#A", False),
        ("####### A", False),
        ("    # A", False),
    ],
)
def test_a_heading_is_one_of_markdown(line: str, is_heading: bool) -> None:
    kinds = borders(f"Before.\n{line}\n").values()
    assert (Border.HEADING in kinds) is is_heading


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\n \t\n", "\r\n\r\n"])
def test_every_kind_of_line_end_counts(line_end: str) -> None:
    kind = Border.PARAGRAPH if line_end.count("\n") > 1 else Border.LINE
    text = f"one{line_end}two"
    assert borders(text) == {text.index("two"): kind}


def test_an_abbreviation_is_no_border() -> None:
    assert borders("See Dr. Smith, e.g. today") == {}


def test_the_border_of_a_token_is_where_the_text_is_cut() -> None:
    text = "one two\n\n## three"
    offsets, words = [(0, 3), (3, 5), (5, 7), (12, 17)], [0, 1, 1, 2]
    kinds, cuts = token_borders(text, offsets, words)
    assert kinds.tolist() == [Border.WORD, Border.WORD, Border.NOTHING, Border.HEADING]
    # No token stands for the marks, so the cut comes before them; the blank before "two" is in its
    # token.
    assert cuts.tolist() == [0, 3, 5, 9]


def test_a_mark_after_a_word_is_a_lower_border_than_a_word() -> None:
    text = "don't go."
    offsets = [(0, 3), (3, 4), (4, 5), (6, 8), (8, 9)]
    kinds, _ = token_borders(text, offsets, range(5))
    assert [Border(kind).name for kind in kinds] == ["WORD", "MARK", "MARK", "WORD", "MARK"]


def test_a_text_without_tokens_has_no_borders() -> None:
    kinds, cuts = token_borders("# a", [], [])
    assert (len(kinds), len(cuts)) == (0, 0)


def test_long_runs_are_read_in_linear_time() -> None:
    for run in (" ", ".", "\n", "!?", ". ", "#", '"'):
        borders(run * (1 << 17))  # in quadratic time, minutes


def test_words_start_after_the_commas_of_cjk() -> None:
    text = "水车转动，磨面粉。春天、秋天，"  # noqa: RUF001
    expected = {"磨面粉。春天、秋天，": "word", "春天、秋天，": "sentence", "秋天，": "word"}  # noqa: RUF001
    assert starts(text) == expected
    # Two tokens of one word, as Unigram makes them of a run without blanks.
    tokens = [(0, 2), (2, 5), (5, 9), (9, 12), (12, 15)]
    kinds, cuts = token_borders(text, tokens, [0] * 5)
    assert kinds.tolist() == [Border.WORD, 0, Border.WORD, Border.SENTENCE, Border.WORD]
    assert cuts.tolist() == [0, 2, 5, 9, 12]
