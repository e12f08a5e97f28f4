"""Sentences of a passage, and the one to show."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TextEmbedder, TokenizedTexts, Vectors
from sbert_search.index.index import Index
from sbert_search.index.snapshot import Snapshot
from sbert_search.search import hits as highlight
from sbert_search.search.hits import best_sentences

TEXTS = [
    "Water turns the wheel of the mill.",
    *(f"The water of river {n} is cold." for n in range(8)),
]
UNKNOWN = "gibberish without any match"  # shares no word with the passages of the tests


class Listener(HashingEmbedder):
    """Remembers what it embedded."""

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        self.heard = list(tokens.texts)
        return super().encode_tokens(tokens)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    out = tmp_path_factory.mktemp("highlight") / "my.index"
    return Index.from_texts(TEXTS, model="hashing", out=out).state


def never() -> TextEmbedder:
    pytest.fail("A word decides, so the model is not needed.")


def by_words(snapshot: Snapshot, query: str, *passages: str) -> list[str]:
    (vector,) = HashingEmbedder().encode_query([query])
    return best_sentences(snapshot, query, passages, vector, never)


def test_the_best_sentence_shares_a_word_in_any_inflection(snapshot: Snapshot) -> None:
    passages = ["Rain falls. Water turned all wheels. Night comes.", "No sentence end here", " "]
    assert by_words(snapshot, "who is turning the wheel", *passages) == [
        "Water turned all wheels.",
        "No sentence end here",
        "",
    ]


def test_a_word_that_is_rare_in_the_index_decides(snapshot: Snapshot) -> None:
    passage = "Water is cold. A wheel is round. Cold water."
    assert by_words(snapshot, "water wheels", passage) == ["A wheel is round."]
    assert by_words(snapshot, "water", passage) == ["Water is cold."]  # the first of equal ones


def test_nearness_decides_where_no_word_is_shared(snapshot: Snapshot) -> None:
    embedder = Listener()
    (night,) = embedder.encode_query(["the night came"])
    passages = ["Dawn is here. The night came.", "The night came early. A mill stands."]
    found = best_sentences(snapshot, "mills at the", passages, night, lambda: embedder)
    assert found == ["The night came.", "A mill stands."]  # "at" and "the" are stop words
    assert sorted(embedder.heard) == ["Dawn is here.", "The night came."]
    first = best_sentences(snapshot, "mills at the", passages)
    assert first == ["Dawn is here.", "A mill stands."]


def test_without_lexical_data_words_are_compared_as_they_are_written(tmp_path: Path) -> None:
    index = Index.from_texts(TEXTS, model="hashing", out=tmp_path / "my.index", lexical=None)
    passage = "All wheels. Rain on a day. The wheel and the water. Day after day."
    assert by_words(index.state, "the Wheel", passage) == ["The wheel and the water."]
    assert by_words(index.state, "day and rain", passage, "Day.") == ["Rain on a day.", "Day."]


def test_a_budget_goes_round_the_passages(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Listener()
    (query,) = embedder.encode_query([UNKNOWN])

    def ask() -> list[str]:
        passages = ["A rain. A night. A fog.", "An ox. A cat. A dog.", "Day."]
        return best_sentences(snapshot, UNKNOWN, passages, query, lambda: embedder)

    ask()
    assert embedder.heard == ["A rain.", "An ox.", "A night.", "A cat.", "A fog.", "A dog."]
    lengths = embedder.tokenize(embedder.heard[:3], task="document").lengths
    monkeypatch.setattr(highlight, "TOKENS", int(lengths.sum()))
    ask()
    assert embedder.heard == ["A rain.", "An ox.", "A night."]
    monkeypatch.setattr(highlight, "TOKENS", 1)
    embedder.heard = []
    assert ask() == ["A rain.", "An ox.", "Day."]
    assert embedder.heard == []


def test_of_a_long_text_only_some_sentences_are_embedded(snapshot: Snapshot) -> None:
    embedder = Listener()
    (query,) = embedder.encode_query([UNKNOWN])
    passage = " ".join(f"Number {n} is here." for n in range(1000))
    assert best_sentences(snapshot, UNKNOWN, [passage], query, lambda: embedder) in [
        [f"Number {n} is here."] for n in range(highlight.SENTENCES)
    ]
    assert len(embedder.heard) == highlight.SENTENCES
    assert by_words(snapshot, "a wheel", f"{passage} A wheel.") == ["A wheel."]


def test_a_heading_is_the_best_sentence_only_if_no_other_shares_a_word(snapshot: Snapshot) -> None:
    passages = [
        "# River mills\n\nA wheel turns. It stands at a river.",
        "## River mills\n\nBread is baked.",
        "# River\nThe mills grind. A river turns.",  # a line end alone ends no sentence
    ]
    assert best_sentences(snapshot, "river mills", passages) == [
        "It stands at a river.",
        "## River mills",
        "# River The mills grind.",
    ]
