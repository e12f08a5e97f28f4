"""Sentences of a passage, and the one to show."""

from __future__ import annotations

from sbert_search.embedding.hashing import HashingEmbedder
from sbert_search.search.highlight import best_sentences


def test_the_best_sentence_shares_the_words_of_the_query() -> None:
    embedder = HashingEmbedder()
    (query,) = embedder.encode_query(["who turns the wheel"])
    passages = ["Rain falls. Water turns the wheel. Night comes.", "No sentence end here"]
    assert best_sentences(query, passages, embedder) == [
        "Water turns the wheel.",
        "No sentence end here",
    ]
