from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.text.tokens.chunking import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One ends. Two begins! Three?", ["One ends.", "Two begins!", "Three?"]),
        ("Mr. Smith met J. R. Ewing. He left.", ["Mr. Smith met J. R. Ewing.", "He left."]),
        ('"Why?" he asked. "No." It was.', ['"Why?" he asked.', '"No."', "It was."]),
        ("It cost 3.5 dollars, e.g. Monday.", ["It cost 3.5 dollars, e.g. Monday."]),
        ('He said "no." Then (he left.) Gone.', ['He said "no."', "Then (he left.)", "Gone."]),
        ("Il vint env. été ou hiver.", ["Il vint env. été ou hiver."]),
        ("Это было, т. е. стало. Потом нет.", ["Это было, т. е. стало.", "Потом нет."]),  # noqa: RUF001
        ("Viz str. číslo pět. Žádné.", ["Viz str. číslo pět.", "Žádné."]),
        ("Αυτό π. χ. είναι… Έτσι; Ναι! όχι", ["Αυτό π. χ. είναι…", "Έτσι; Ναι! όχι"]),  # noqa: RUF001
        ("See No. 5. 1999 was late.", ["See No. 5.", "1999 was late."]),
        ("東京です。大阪。はい", ["東京です。", "大阪。", "はい"]),
        ("「はい。」と言う。本当？！そう", ["「はい。」", "と言う。", "本当？！", "そう"]),  # noqa: RUF001
        ("هل تقرأ؟ نعم. أقرأ!؟ ثم", ["هل تقرأ؟", "نعم.", "أقرأ!؟", "ثم"]),
        ("यह है।वह॥ ठीक", ["यह है।", "वह॥", "ठीक"]),
        ("یہ ہے۔ وہ", ["یہ ہے۔", "وہ"]),  # noqa: RUF001
        ("History.\nIt began here\nand", ["History.", "It began here", "and"]),
        (" \n\t ", []),
        ("", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_wrapped_lines_go_on_until_a_blank_line() -> None:
    text = "It was the best\nof times. It was\nthe worst.\n\nCHAPTER II\n\nHe came"
    assert split_sentences(text, wrapped=True) == [
        "It was the best of times.",
        "It was the worst.",
        "CHAPTER II",
        "He came",
    ]


@given(st.text(st.sampled_from("aB1 .!?\n\"'()。")), st.booleans())
def test_nothing_is_lost(text: str, wrapped: bool) -> None:
    found = split_sentences(text, wrapped=wrapped)
    assert "".join(found).replace(" ", "") == "".join(text.split())
    assert all(found)
