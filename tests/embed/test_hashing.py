import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError


@given(st.lists(st.text(max_size=40), max_size=8))
def test_vectors_have_length_one_and_ignore_company(texts: list[str]) -> None:
    embedder = HashingEmbedder(32)
    vectors = embedder.encode(texts)
    assert vectors.shape == (len(texts), 32)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-6)
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_array_equal(embedder.encode([text])[0], vector)


def test_shared_words_bring_texts_together() -> None:
    near, far = HashingEmbedder().encode(["the red cat", "stock markets fell"])
    query = HashingEmbedder().encode_query(["a red cat"])[0]
    assert query @ near > 0.6 > 0.2 > query @ far


def test_words_beyond_max_len_are_counted() -> None:
    tokens = HashingEmbedder(8, max_len=3).tokenize(["a b c d e", "a b"])
    assert tokens.lost.tolist() == [2, 0]
    assert tokens.lengths.tolist() == [3, 2]


def test_passages_hold_as_many_words_as_are_read() -> None:
    embedder = HashingEmbedder(8, max_len=3)
    text = "İ İstanbul two three four"  # İ is one word in lower case, and İstanbul two
    spans = embedder.split(text)
    assert [text[start:end] for start, end in spans] == ["İ İstanbul ", "two three four"]
    assert embedder.tokenize([text[start:end] for start, end in spans]).lost.tolist() == [0, 0]


def test_it_has_no_prompts() -> None:
    with pytest.raises(ConfigError, match="no prompt 'query'"):
        HashingEmbedder().tokenize(["a"], prompt_name="query")
