"""Training takes as many vectors as the budget allows, evenly from all segments."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.index.dense import faiss_build
from sbert_search.index.dense.faiss_runtime import import_faiss
from sbert_search.index.settings import IndexSpec
from sbert_search.index.storage.manifest import VectorSettings
from tests.limits import memory_limited

DIM = 8
N_ROWS = 3_000


@pytest.fixture
def segments() -> list[NDArray[np.floating]]:
    """Vectors whose first value is their row, in three segments of different types."""
    vectors = np.random.default_rng(0).standard_normal((N_ROWS, DIM)).astype(np.float32)
    vectors[:, 0] = np.arange(N_ROWS)
    return [vectors[:1_000], vectors[1_000:1_001], vectors[1_001:].astype(np.float16)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("factory", "limit_bytes", "expected"),
    [
        ("IVF64,Flat", 1, 64),
        ("PQ4", 1, 256),
        ("IVF64,PQ4x4fs", 1, 64),
        ("IVF64,Flat", 16 * DIM * 700, 700),
        ("IVF64,Flat", None, N_ROWS),
    ],
)
def test_a_small_budget_leaves_a_vector_for_each_centroid(
    segments: list[NDArray[np.floating]],
    monkeypatch: pytest.MonkeyPatch,
    factory: str,
    limit_bytes: int | None,
    expected: int,
) -> None:
    taken: list[NDArray[np.float32]] = []
    train_on = faiss_build.train_on

    def noted(index: object, vectors: NDArray[np.float32]) -> None:
        taken.append(vectors)
        train_on(index, vectors)

    monkeypatch.setattr(faiss_build, "train_on", noted)
    monkeypatch.setattr(faiss_build, "ADD_ROWS", 500)
    if "PQ4" in factory and "IVF" not in factory:
        segments = segments * 4  # PQ needs 39 vectors for each of 256 codewords
    settings = VectorSettings(dim=DIM, metric="cosine", spec=IndexSpec(factory=factory))
    with memory_limited(limit_bytes):
        index = faiss_build.train(segments, settings)
    assert index is not None
    assert index.is_trained
    (vectors,) = taken
    assert vectors.shape == (expected, DIM)
    everything = np.concatenate([segment.astype(np.float32) for segment in segments])
    rows = np.arange(expected) * len(everything) // expected
    np.testing.assert_array_equal(vectors, everything[rows])


def test_too_few_vectors_are_searched_exactly(
    segments: list[NDArray[np.floating]], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = VectorSettings(dim=DIM, metric="cosine", spec=IndexSpec(factory="IVF77,Flat"))
    assert faiss_build.train(segments, settings) is None
    assert "IVF77,Flat needs at least 3,003 training vectors and there are 3,000" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("factory", "candidates"),
    [
        ("Flat", 1),
        ("HNSW32", 1),
        ("IVF64,Flat", 1),
        ("HNSW32,SQ8", 4),
        ("PCA64,HNSW32", 4),
        ("RR64,IVF64,Flat", 4),
        ("OPQ8,IVF64,PQ8", 4),
        ("IVF64,RaBitQfs", 10),
    ],
)
def test_an_index_that_loses_precision_fetches_more_candidates(
    factory: str, candidates: int
) -> None:
    spec = IndexSpec(factory=factory)
    assert spec.candidates_per_result == candidates
    assert spec.is_compressed == (candidates > 1)


@pytest.mark.parametrize("factory", ["IVF8,Flat", "IVF8,SQ8", "IVF8,PQ4x4", "IVF8,RaBitQ"])
def test_lists_copied_from_older_indexes_are_those_of_an_index_filled_anew(factory: str) -> None:
    faiss = import_faiss()
    vectors = np.random.default_rng(1).standard_normal((1_500, DIM)).astype(np.float32)
    settings = VectorSettings(dim=DIM, spec=IndexSpec(factory=factory))
    empty = faiss_build.train([vectors], settings)
    assert empty is not None
    is_live = np.random.default_rng(2).random(1_500) < 0.7
    new = np.where(is_live, np.cumsum(is_live) - 1, -1)
    filled = [
        (faiss_build.fill(empty, vectors[start:stop]), new[start:stop])
        for start, stop in ((0, 900), (900, 1_300))  # the last 200 are added
    ]
    copied = faiss_build.fill(empty, vectors[is_live], filled=filled)
    anew = faiss_build.fill(empty, vectors[is_live])
    np.testing.assert_array_equal(faiss.serialize_index(copied), faiss.serialize_index(anew))
