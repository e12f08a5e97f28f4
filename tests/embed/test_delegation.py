"""What embedders around another embedder have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sbert_search.embed.delegation import DelegatingEmbedder
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import Task, TextEmbedder, TokenizedTexts, Vectors

TEXTS = ["the moon", "a mill"]


class Prompting(HashingEmbedder):
    """Puts the name of the task before each text."""

    def tokenize(
        self, texts: Sequence[str], *, task: Task | None = None, prompt_name: str | None = None
    ) -> TokenizedTexts:
        return super().tokenize([f"{prompt_name or task} {text}" for text in texts])


class Negating(DelegatingEmbedder):
    """The vectors of another embedder with the other sign."""

    def __init__(self) -> None:
        self.other = Prompting(8)

    @property
    def inner(self) -> TextEmbedder:
        return self.other

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        return -self.other.encode_tokens(tokens)


@pytest.mark.parametrize(
    ("method", "task"),
    [("encode", None), ("encode_query", "query"), ("encode_document", "document")],
)
def test_texts_become_vectors_by_encode_tokens(method: str, task: Task | None) -> None:
    outer = Negating()
    expected = -HashingEmbedder(8).encode([f"{task} {text}" for text in TEXTS])
    np.testing.assert_array_equal(getattr(outer, method)(TEXTS), expected)
    assert getattr(outer, method)([]).shape == (0, 8)


def test_everything_else_is_that_of_the_other() -> None:
    outer = Negating()
    other = outer.other
    assert (outer.dim, outer.max_len) == (other.dim, other.max_len)
    assert (outer.identity, outer.batch_tokens) == (other.identity, other.batch_tokens)
    named, plain = (
        outer.tokenize(TEXTS, prompt_name="x"),
        HashingEmbedder(8).tokenize([f"x {text}" for text in TEXTS]),
    )
    assert named.ids == plain.ids
    assert outer.split("one two", task="query") == other.split("one two", task="query")
