"""The mean cosine of unrelated texts, by which hybrid search maps the cosines of a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import Vectors
from sbert_search.index.building.model_check import unrelated_cosine
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine


class Crowded(HashingEmbedder):
    """A model whose vectors all have a common part, so that its cosines are high."""

    def __init__(self, common: float) -> None:
        super().__init__(64)
        self._common = common

    def _crowd(self, vectors: Vectors) -> Vectors:
        shared = np.full((len(vectors), self.dim), self._common / self.dim**0.5, np.float32)
        return vectors + shared

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        return self._crowd(super().encode_document(texts))

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        return self._crowd(super().encode_query(texts))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def test_it_is_the_mean_over_pairs_of_different_texts() -> None:
    low = unrelated_cosine(HashingEmbedder(64))
    assert abs(low) < 0.1


def test_a_common_part_of_all_texts_raises_it() -> None:
    # With a common part of norm 2 at a right angle, a cosine c becomes (c + 4) / 5.
    assert unrelated_cosine(Crowded(2.0)) == pytest.approx(0.8, abs=0.05)


class OneVector(HashingEmbedder):
    """A collapsed model."""

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        return np.ones((len(texts), self.dim), np.float32)

    encode_query = encode_document


def test_a_collapsed_model_has_no_map() -> None:
    assert unrelated_cosine(OneVector()) == 0.0


def test_an_index_keeps_it_and_given_vectors_have_none() -> None:
    rows = [{"_id": "a", "text": "mill"}, {"_id": "b", "text": "bread"}]
    index = Index.build(rows, model=HashingEmbedder())
    stored = index.state.settings.unrelated_cosine
    assert stored == unrelated_cosine(HashingEmbedder())
    given = Index.build(rows, vectors=np.eye(2, dtype=np.float32))
    assert given.state.settings.unrelated_cosine == 0.0


def test_words_are_not_drowned_by_high_cosines() -> None:
    """Given the same texts, the fused score of a crowded model is nearly that of the plain one."""
    rows = [{"_id": str(n), "text": f"mill word{n} river name{n % 7}"} for n in range(30)]
    plain = SearchEngine(Index.build(rows, model=HashingEmbedder(64)))
    scores = {hit.doc_id: hit.score for hit in plain.search("mill name3", 30)}
    vectors = HashingEmbedder(64).encode([row["text"] for row in rows])
    vectors = np.hstack([vectors, np.full((30, 1), 2.0, np.float32)])
    index = Index.build(rows, vectors=vectors)
    query = np.append(HashingEmbedder(64).encode_query(["mill name3"])[0], np.float32(2.0))
    without = SearchEngine(index).search("mill name3", 30, vector=query)
    assert max(abs(hit.score - scores[hit.doc_id]) for hit in without) > 0.2
    from dataclasses import replace

    state = index.state
    settings = replace(state.settings, unrelated_cosine=0.8)
    state.manifest = state.manifest.with_settings(settings)
    mapped = SearchEngine(index).search("mill name3", 30, vector=query)
    assert [hit.score for hit in mapped] == pytest.approx(
        [scores[hit.doc_id] for hit in mapped], abs=1e-5
    )
