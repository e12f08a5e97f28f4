"""Exact match and F1 by hand, on the cases in which SQuAD's script has rules of its own."""

from __future__ import annotations

import pytest

from sbert_search.evaluate.metrics.classification import answer_f1, exact_match, normalize_answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Apollo\tprogram", "apollo program"),
        ("an apple a day", "apple day"),
        ("theatre and Anna", "theatre and anna"),  # articles only as whole words
        ("U.S.A.", "usa"),
        ("$1,000.50", "100050"),
        ("a.", ""),  # punctuation goes first, then the article
        ("«L'Équipe»", "«léquipe»"),  # only ASCII punctuation goes
        ("the-end", "theend"),
    ],
)
def test_normalisation(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("predicted", "accepted", "exact", "f1"),
    [
        ("The Denver Broncos!", ["denver broncos"], 1, 1),
        ("Broncos", ["Denver Broncos"], 0, 2 / 3),
        ("in the city of Denver", ["Denver", "city of Denver"], 0, 6 / 7),  # the best one counts
        ("to be or not to be", ["to be"], 0, 2 * 2 / (6 + 2)),  # words count as often as they occur
        ("red", ["blue"], 0, 0),
        ("", [], 1, 1),
        ("something", [], 0, 0),
        ("", ["something"], 0, 0),
        ("the", ["something", "a"], 0, 0),  # an accepted answer without words is left out,
        ("the", ["a"], 1, 1),  # unless no other one is left: then no answer is right
        ("the", [], 1, 1),
    ],
)
def test_exact_match_and_f1(predicted: str, accepted: list[str], exact: int, f1: float) -> None:
    assert exact_match(predicted, accepted) == exact
    assert answer_f1(predicted, accepted) == pytest.approx(f1)
