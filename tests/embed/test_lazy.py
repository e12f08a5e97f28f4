"""A model that is opened at its first use."""

from __future__ import annotations

import numpy as np
import pytest

from sbert_search.embed.delegation import LazyEmbedder
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ModelError


def test_the_model_is_opened_once_and_answers_as_itself() -> None:
    opened: list[HashingEmbedder] = []

    def open_model() -> HashingEmbedder:
        opened.append(HashingEmbedder())
        return opened[-1]

    lazy = LazyEmbedder(open_model)
    assert (lazy.is_open, opened) == (False, [])
    real, texts = HashingEmbedder(), ["the moon", "a mill"]
    assert (lazy.dim, lazy.max_len, lazy.batch_tokens) == (
        real.dim,
        real.max_len,
        real.batch_tokens,
    )
    assert lazy.identity == real.identity
    assert lazy.split("one two") == real.split("one two")
    assert np.array_equal(lazy.encode_tokens(lazy.tokenize(texts)), real.encode(texts))
    for name in ("encode", "encode_query", "encode_document"):
        assert np.array_equal(getattr(lazy, name)(texts), getattr(real, name)(texts))
    assert lazy.is_open
    assert len(opened) == 1


def test_an_error_of_opening_comes_at_each_use() -> None:
    def fail() -> HashingEmbedder:
        raise ModelError("no model")

    lazy = LazyEmbedder(fail)
    for _ in range(2):
        with pytest.raises(ModelError, match="no model"):
            assert lazy.dim
    assert not lazy.is_open
