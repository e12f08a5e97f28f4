"""Edit distances of many words at once, as a table for one pair of words gives them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.index.lexical.vocabulary import Characters, code_points, within


def distance(a: str, b: str) -> int:
    """Optimal string alignment distance by its definition."""
    cells: dict[tuple[int, int], int] = {}
    for i, j in itertools.product(range(len(a) + 1), range(len(b) + 1)):
        if i == 0 or j == 0:
            cells[i, j] = i + j
            continue
        replaced = cells[i - 1, j - 1] + (a[i - 1] != b[j - 1])
        cells[i, j] = min(cells[i - 1, j] + 1, cells[i, j - 1] + 1, replaced)
        if i > 1 and j > 1 and a[i - 2 : i] == b[j - 1] + b[j - 2]:
            cells[i, j] = min(cells[i, j], cells[i - 2, j - 2] + 1)
    return cells[len(a), len(b)]


def near(word: str, others: list[str], most: int) -> dict[int, int]:
    starts = np.cumsum([0, *map(len, others)])
    at, distances = within(word, Characters(code_points("".join(others)), starts), most)
    return dict(zip(at.tolist(), distances.tolist(), strict=True))


@pytest.mark.parametrize(
    ("word", "other", "edits"),
    [
        ("germ", "germs", 1),
        ("germ", "gem", 1),
        ("germ", "term", 1),
        ("germ", "gemr", 1),  # a swap
        ("germ", "grmex", 3),
        ("ca", "abc", 3),  # no part is edited twice: not a swap with an insertion inside
        ("mühle", "muhle", 1),
        ("germ", "germ", 0),
    ],
)
def test_edits_of_two_words(word: str, other: str, edits: int) -> None:
    assert distance(word, other) == edits
    for most in (1, 2, 3):
        assert near(word, [other], most) == ({0: edits} if edits <= most else {})


# Characters of one to four bytes in UTF-8; "b" and "â" share one of the 64 bits by which words are
# selected before their distances are computed.
LETTERS = st.sampled_from("abcdâ漢\U00010400")
WORD = st.text(LETTERS, min_size=1, max_size=9)


@given(WORD, st.lists(WORD, max_size=30), st.integers(1, 3))
def test_many_words_at_once(word: str, others: list[str], most: int) -> None:
    expected = {i: distance(word, other) for i, other in enumerate(others)}
    assert near(word, others, most) == {i: d for i, d in expected.items() if d <= most}
