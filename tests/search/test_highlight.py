"""Sentences of a passage, and the one to show."""

from __future__ import annotations

import pytest

from sbert_search.embedding.hashing import HashingEmbedder
from sbert_search.search.highlight import best_sentences, sentences


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("One. Two? Three! Four", ["One.", "Two?", "Three!", "Four"]),
        ("It costs 3.5 dollars, e.g. on\nMondays.", ["It costs 3.5 dollars, e.g. on Mondays."]),
        ('He said "no." Then (he left.) Gone.', ['He said "no."', "Then (he left.)", "Gone."]),
        ("A heading\n\nand a paragraph", ["A heading", "and a paragraph"]),
        (" \n ", []),
        ("", []),
    ],
)
def test_sentences(text: str, cut: list[str]) -> None:
    assert sentences(text) == cut


def test_the_best_sentence_shares_the_words_of_the_query() -> None:
    embedder = HashingEmbedder()
    (query,) = embedder.encode_query(["who turns the wheel"])
    passages = ["Rain falls. Water turns the wheel. Night comes.", "No sentence end here"]
    assert best_sentences(query, passages, embedder) == [
        "Water turns the wheel.",
        "No sentence end here",
    ]
