from dataclasses import replace

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.lab.anisotropy.remedies import (
    LinearMap,
    MappedEmbedder,
    all_but_the_top,
    fit_remedies,
    standardise,
    whiten,
)

DIM = 7


@pytest.fixture
def vectors() -> np.ndarray:
    """Vectors with a large mean, dimensions of unlike spread, and correlated ones."""
    draw = np.random.default_rng(0)
    mixed = draw.normal(size=(400, DIM)) @ draw.normal(size=(DIM, DIM))
    return (mixed * np.arange(1, DIM + 1) + 5).astype(np.float32)


def test_whitening_gives_the_identity_as_covariance(vectors: np.ndarray) -> None:
    white = whiten(vectors)(vectors)
    assert white.mean(axis=0) == pytest.approx(np.zeros(DIM), abs=1e-9)
    assert np.cov(white, rowvar=False, bias=True) == pytest.approx(np.eye(DIM), abs=1e-9)


def test_whitening_to_fewer_dimensions_keeps_those_of_most_variance(vectors: np.ndarray) -> None:
    assert whiten(vectors, dim=3)(vectors) == pytest.approx(whiten(vectors)(vectors)[:, :3])


def test_whitening_keeps_no_direction_without_variance(vectors: np.ndarray) -> None:
    flat = np.concatenate([vectors, vectors[:, :2].sum(axis=1, keepdims=True)], axis=1)
    assert whiten(flat).weight.shape == (DIM, DIM + 1)
    assert whiten(vectors[:4]).weight.shape == (3, DIM)  # four vectors vary in three directions
    with pytest.raises(ConfigError, match="vary in 3 directions"):
        whiten(vectors[:4], dim=4)


def test_standardising_gives_each_dimension_mean_0_and_deviation_1(vectors: np.ndarray) -> None:
    vectors[:, 2] = 3.0
    scaled = standardise(vectors)(vectors)
    assert scaled.mean(axis=0) == pytest.approx(np.zeros(DIM), abs=1e-6)
    assert scaled.std(axis=0) == pytest.approx([1, 1, 0, 1, 1, 1, 1], abs=1e-6)


def test_all_but_the_top_removes_the_first_directions_and_nothing_else(
    vectors: np.ndarray,
) -> None:
    centred = vectors - vectors.mean(axis=0, dtype=np.float64)
    _, _, rows = np.linalg.svd(centred)
    left = all_but_the_top(vectors, directions=2)(vectors)
    assert left @ rows[:2].T == pytest.approx(np.zeros((400, 2)), abs=1e-3)
    assert left @ rows[2:].T == pytest.approx(centred @ rows[2:].T, abs=1e-3)


@pytest.mark.parametrize(("dim", "removed"), [(7, 1), (149, 1), (384, 4), (768, 8)])
def test_one_direction_is_removed_for_each_100_dimensions(dim: int, removed: int) -> None:
    many = np.random.default_rng(0).normal(size=(dim + 9, dim))
    assert np.linalg.matrix_rank(all_but_the_top(many).weight, tol=1e-6) == dim - removed


def test_directions_out_of_range_are_refused(vectors: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="directions is 7; it must be from 0 to 6"):
        all_but_the_top(vectors, directions=7)


def test_equal_vectors_are_refused(vectors: np.ndarray) -> None:
    with pytest.raises(EvaluationError, match="All 400 sentence vectors are equal"):
        fit_remedies(np.broadcast_to(vectors[:1], vectors.shape))


def test_the_bias_makes_the_map_affine(vectors: np.ndarray) -> None:
    fitted = whiten(vectors)
    assert fitted(vectors) == pytest.approx(vectors @ fitted.weight.T + fitted.bias, abs=1e-5)


def test_a_mapped_embedder_gives_unit_vectors_of_the_map() -> None:
    inner = HashingEmbedder(16)
    half = LinearMap(np.eye(16)[:4] * 3, np.full(16, 0.1))
    mapped = MappedEmbedder(inner, "half", half)
    texts = ["a cat sat", "the red sun", "mills grind grain"]
    expected = half(inner.encode(texts))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    for got in (
        mapped.encode(texts),
        mapped.encode_query(texts),
        mapped.encode_document(texts),
        mapped.encode_tokens(mapped.tokenize(texts)),
    ):
        assert got == pytest.approx(expected, abs=1e-6)
    assert (mapped.dim, mapped.max_len) == (4, inner.max_len)
    assert mapped.split("a cat sat") == inner.split("a cat sat")


def test_another_map_is_another_model() -> None:
    inner = HashingEmbedder(16)
    maps = [LinearMap(np.eye(16) * scale, np.zeros(16)) for scale in (1.0, 2.0)]
    first, second = (MappedEmbedder(inner, "m", each).identity for each in maps)
    assert first.weights_sha256 != second.weights_sha256
    assert replace(first, weights_sha256="") == replace(second, weights_sha256="")
    assert first.normalize
