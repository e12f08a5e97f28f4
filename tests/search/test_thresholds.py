"""A threshold of 1 finds equal vectors, though cosines are rounded; lower ones stay as given."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from sbert_search import Fusion, Index, SearchEngine, SearchOptions
from sbert_search.index.storage.manifest import Metric, VectorType
from sbert_search.search.pairs import close_pairs


@pytest.mark.parametrize("dtype", get_args(VectorType))
@pytest.mark.parametrize("dim", [3, 64, 1024])
def test_equal_vectors_reach_a_threshold_of_1(dtype: VectorType, dim: int, tmp_path: Path) -> None:
    draw = np.random.default_rng(dim)
    vectors = draw.standard_normal((200, dim)).astype(np.float32)
    index = Index.from_vectors(
        np.concatenate([vectors, 3 * vectors]), out=tmp_path / "i", dtype=dtype
    )
    engine = SearchEngine(index)
    rounded = 0
    for row, vector in enumerate(vectors):
        hits = engine.search(vector, 50, mode="dense", min_score=1.0)
        assert {str(row), str(row + 200)} <= {hit.doc_id for hit in hits}
        rounded += hits[-1].score < 1
    assert rounded  # otherwise this test shows nothing
    for exact in (True, False):
        found = list(close_pairs(index.state, 1.0, exact=exact))
        pairs = {pair for part in found for pair in zip(part.first, part.second, strict=True)}
        assert {(row, row + 200) for row in range(200)} <= pairs


@pytest.mark.parametrize("dtype", get_args(VectorType))
@pytest.mark.parametrize("metric", get_args(Metric))
def test_equal_texts_have_a_fused_score_of_1(
    metric: Metric, dtype: VectorType, tmp_path: Path
) -> None:
    draw = np.random.default_rng(1)
    vectors = draw.standard_normal((200, 64)).astype(np.float32)
    texts = [f"word{row}" for row in range(200)]
    rows = [{"id": text, "text": text} for text in texts]
    index = Index.build(rows, vectors=vectors, out=tmp_path / "i", dtype=dtype, metric=metric)
    options = SearchOptions(mode="hybrid", fusion=Fusion(dense_weight=1.0), min_score=1.0)
    hits = SearchEngine(index).search_many(texts, vectors=vectors, options=options)
    for text, found in zip(texts, hits, strict=True):
        assert [(hit.doc_id, hit.score) for hit in found] == [(text, 1.0)]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", get_args(VectorType))
def test_a_lower_threshold_is_the_lowest_score(dtype: VectorType, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((500, 3)).astype(np.float32)
    engine = SearchEngine(Index.from_vectors(vectors, out=tmp_path / "i", dtype=dtype))
    for threshold in (-0.5, 0.5, 0.9, 0.99, 0.998):
        for vector in vectors[:20]:
            scores = [hit.score for hit in engine.search(vector, 500, mode="dense")]
            kept = engine.search(vector, 500, mode="dense", min_score=threshold)
            assert [hit.score for hit in kept] == [s for s in scores if s >= threshold - 1e-6]


@pytest.mark.parametrize("dtype", get_args(VectorType))
def test_a_threshold_above_1_is_reached_by_nothing(dtype: VectorType) -> None:
    index = Index.from_vectors(np.eye(3, dtype=np.float32).repeat(2, axis=0), dtype=dtype)
    assert SearchEngine(index).search(np.eye(3)[0], mode="dense", min_score=1.001) == []
    assert not [part for part in close_pairs(index.state, 90.0) if len(part.first)]
