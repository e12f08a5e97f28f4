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


def test_words_decide_without_the_model_where_one_sentence_has_most() -> None:
    embedder = Listener()
    (night,) = embedder.encode_query(["night comes"])
    passages = ["Rain falls. Water turns the wheel. Night comes.", "One sentence only."]
    embedder.heard = []
    assert best_sentences(QUERY, night, passages, embedder) == [
        "Water turns the wheel.",
        "One sentence only.",
    ]
    assert embedder.heard == []


def test_nearness_decides_among_sentences_that_are_close_by_words() -> None:
    embedder = Listener()
    (night,) = embedder.encode_query(["the wheel at night"])
    passages = ["The wheel squeaks. The wheel at night. Rain falls.", "Dawn is here. Night came."]
    assert best_sentences("a wheel", night, passages, embedder) == [
        "The wheel at night.",
        "Night came.",
    ]
    assert sorted(embedder.heard) == [
        "Dawn is here.",
        "Night came.",
        "The wheel at night.",
        "The wheel squeaks.",
    ]


def test_a_budget_goes_round_the_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Listener()
    (query,) = embedder.encode_query([QUERY])
    passages = ["A rain. A night. A fog.", "An ox. A cat. A dog.", "Day."]
    best_sentences(QUERY, query, passages, embedder)
    assert embedder.heard == ["A rain.", "An ox.", "A night.", "A cat.", "A fog.", "A dog."]
    lengths = embedder.tokenize(embedder.heard[:3], task="document").lengths
    monkeypatch.setattr(highlight, "TOKENS", int(lengths.sum()))
    best_sentences(QUERY, query, passages, embedder)
    assert embedder.heard == ["A rain.", "An ox.", "A night."]
    monkeypatch.setattr(highlight, "TOKENS", 1)
    embedder.heard = []
    assert best_sentences(QUERY, query, passages, embedder) == ["A rain.", "An ox.", "Day."]
    assert embedder.heard == []


def test_of_a_long_text_only_some_sentences_are_embedded() -> None:
    embedder = Listener()
    (query,) = embedder.encode_query([QUERY])
    passage = " ".join(f"Number {n} is here." for n in range(1000))
    assert best_sentences(QUERY, query, [passage], embedder) in [
        [f"Number {n} is here."] for n in range(highlight.SENTENCES)
    ]
    assert len(embedder.heard) == highlight.SENTENCES
    assert best_sentences(QUERY, query, [f"{passage} A wheel."], embedder) == ["A wheel."]
