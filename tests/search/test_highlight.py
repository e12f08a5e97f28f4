"""Sentences of a passage, and the one to show."""

from __future__ import annotations

import pytest

from sbert_search.embedding.hashing import HashingEmbedder
from sbert_search.embedding.protocol import TokenizedTexts, Vectors
from sbert_search.search import highlight
from sbert_search.search.highlight import best_sentences

QUERY = "who turns the wheel"


class Listener(HashingEmbedder):
    """Remembers what it embedded."""

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        self.heard = list(tokens.texts)
        return super().encode_tokens(tokens)


def test_the_best_sentence_shares_the_words_of_the_query() -> None:
    embedder = HashingEmbedder()
    (query,) = embedder.encode_query([QUERY])
    passages = ["Rain falls. Water turns the wheel. Night comes.", "No sentence end here", " "]
    assert best_sentences(QUERY, query, passages, embedder) == [
        "Water turns the wheel.",
        "No sentence end here",
        "",
    ]


def test_nearness_decides_among_the_sentences_that_are_embedded() -> None:
    embedder = HashingEmbedder()
    (night,) = embedder.encode_query(["night comes"])
    passages = ["Rain falls. Water turns the wheel. Night comes."]
    assert best_sentences(QUERY, night, passages, embedder) == ["Night comes."]


def test_a_budget_goes_first_to_sentences_that_share_rare_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embedder = Listener()
    (query,) = embedder.encode_query([QUERY])
    passages = ["The rain. The wheel. The night.", "The ox turns. The cat. The dog.", "Day."]
    monkeypatch.setattr(highlight, "TOKENS", 1)
    assert best_sentences(QUERY, query, passages, embedder) == [
        "The wheel.",
        "The ox turns.",
        "Day.",
    ]
    assert embedder.heard == ["The wheel.", "The ox turns.", "Day."]
    monkeypatch.setattr(highlight, "TOKENS", 1000)
    best_sentences(QUERY, query, passages, embedder)
    assert embedder.heard[3:] == ["The rain.", "The cat.", "The night.", "The dog."]


def test_of_a_long_text_only_some_sentences_are_looked_at() -> None:
    embedder = Listener()
    (query,) = embedder.encode_query([QUERY])
    passage = " ".join(f"Number {n} is here." for n in range(1000)) + " A wheel."
    assert best_sentences(QUERY, query, [passage], embedder) == ["A wheel."]
    assert len(embedder.heard) == highlight.SENTENCES
