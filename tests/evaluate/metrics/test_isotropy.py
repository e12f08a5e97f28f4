import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.evaluate.metrics.isotropy import (
    UnitSums,
    cosine_quantiles,
    deviations,
    effective_rank,
    explained_by_one,
    first_direction,
    pair_cosines,
    unit_rows,
)


def vectors_of(seed: int, n: int, dim: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.5, 1.0, (n, dim)).astype(np.float32)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@given(st.integers(0, 99), st.integers(2, 9), st.integers(1, 5))
def test_the_mean_cosine_is_that_of_all_pairs_one_by_one(seed: int, n: int, dim: int) -> None:
    vectors = vectors_of(seed, n, dim)
    one_by_one = [cosine(a, b) for a, b in combinations(vectors, 2)]
    assert UnitSums.of(vectors).mean_cosine() == pytest.approx(np.mean(one_by_one), abs=1e-6)
    assert sorted(pair_cosines(vectors)) == pytest.approx(sorted(one_by_one), abs=1e-6)


def test_shares_of_dimensions_worked_by_hand() -> None:
    # Unit vectors (0.6, 0.8) and (1, 0): products 0.6 and 0, so the first dimension has it all.
    sums = UnitSums.of(np.array([[3.0, 4.0], [2.0, 0.0]]))
    assert sums.products() == pytest.approx([0.6, 0.0])
    assert sums.dimension_shares(2) == pytest.approx({0: 1.0, 1: 0.0})
    # (0.6, 0.8) and (0.8, 0.6): 0.48 each.
    even = UnitSums.of(np.array([[0.6, 0.8], [0.8, 0.6]])).dimension_shares(2)
    assert even == pytest.approx({0: 0.5, 1: 0.5})
    assert UnitSums.of(np.eye(2)).dimension_shares(2) == {0: 0, 1: 0}  # the mean cosine is 0


def test_shares_of_all_dimensions_add_up_to_one() -> None:
    shares = UnitSums.of(vectors_of(1, 30, 6)).dimension_shares(6)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_a_zero_row_stays_zero() -> None:
    assert unit_rows(np.array([[0.0, 0.0], [0.0, 2.0]])).tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_deviations_are_singular_values_without_the_mean() -> None:
    vectors = vectors_of(2, 40, 5).astype(np.float64)
    expected = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False) / math.sqrt(40)
    got = deviations(vectors.T @ vectors, vectors.sum(axis=0), 40)
    assert got == pytest.approx(expected)


def test_the_effective_rank_worked_by_hand() -> None:
    assert effective_rank(np.array([2.0, 2.0, 2.0, 2.0])) == pytest.approx(4.0)
    assert effective_rank(np.array([5.0, 0.0, 0.0])) == pytest.approx(1.0)
    # Shares 3/4 and 1/4: entropy 0.5623 nats.
    assert effective_rank(np.array([3.0, 1.0])) == pytest.approx(math.exp(0.5623351), rel=1e-6)
    assert effective_rank(np.zeros(3)) == 0.0


def test_the_first_direction_has_its_share_of_the_variance() -> None:
    assert first_direction(np.array([3.0, 1.0])) == pytest.approx(0.9)
    assert first_direction(np.zeros(2)) == 0.0


def test_one_direction_explains_parallel_vectors_and_half_of_orthogonal_ones() -> None:
    assert explained_by_one(np.array([[1.0, 1.0], [2.0, 2.0], [-3.0, -3.0]])) == pytest.approx(1.0)
    assert explained_by_one(np.eye(2)) == pytest.approx(0.5)
    assert explained_by_one(np.zeros((2, 2))) == 0.0


def test_quantiles_of_cosines() -> None:
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # cosines 1, 0 and 0
    assert cosine_quantiles(vectors, (0.0, 0.5, 1.0)) == pytest.approx({0.0: 0, 0.5: 0, 1.0: 1})
