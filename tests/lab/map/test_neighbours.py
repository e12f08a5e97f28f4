from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.index.storage.manifest import Metric
from sbert_search.lab.map.layout import MOST_COPIES, Neighbours, duplicate_groups, nearest
from tests.lab.map.conftest import clustered


def scores_of(vectors: NDArray[np.float32], metric: Metric) -> NDArray[np.float64]:
    wide = vectors.astype(float)
    scores: NDArray[np.float64] = wide @ wide.T
    if metric == "euclidean":
        scores = -np.linalg.norm(wide[:, None] - wide, axis=2)
    return scores


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_neighbours_equal_brute_force(metric: Metric) -> None:
    lengths = 1 if metric == "cosine" else np.linspace(1, 2, 300)[:, None]
    vectors: NDArray[np.float32] = (clustered(300) * lengths).astype(np.float32)
    scores = scores_of(vectors, metric)
    np.fill_diagonal(scores, -np.inf)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :7]
    found = nearest(vectors, 7, metric)
    np.testing.assert_array_equal(found.at, expected)
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, expected, 1), atol=1e-6)


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_many_equal_vectors_have_the_neighbours_of_brute_force(metric: Metric) -> None:
    drawn = np.random.default_rng(3).integers(0, 12, 400)
    few = clustered(12) * (1 if metric == "cosine" else np.linspace(1, 2, 12)[:, None])
    vectors = few[np.where(np.arange(400) % 3 == 0, 0, drawn)].astype(np.float32)
    assert np.unique(vectors, axis=0, return_counts=True)[1].max() > MOST_COPIES
    done: list[int] = []
    found = nearest(vectors, 7, metric, done.append)
    scores = scores_of(vectors, metric)
    scores = scores.round(9)  # equal vectors have equal scores
    np.fill_diagonal(scores, -np.inf)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :7]
    np.testing.assert_array_equal(found.at, expected)
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, expected, 1), atol=1e-6)
    assert sum(done) == 400


def test_a_document_is_never_its_own_neighbour_among_equal_vectors() -> None:
    vectors = np.full((10, 4), 0.5, np.float32)
    found = nearest(vectors, 3, "cosine")
    assert found.at[9].tolist() == [0, 1, 2]
    assert found.at[0].tolist() == [1, 2, 3]
    assert not (found.at == np.arange(10)[:, None]).any()


def test_distances_by_hand() -> None:
    found = Neighbours(np.array([[1, 2]], np.int32), np.array([[0.9, 0.5]], np.float32))
    assert found.distances("cosine")[0] == pytest.approx(0.3)
    assert found.distances("dot")[0] == pytest.approx(-0.7)
    minus = Neighbours(found.at, -found.scores)
    assert minus.distances("euclidean")[0] == pytest.approx(0.7)


def components(near: NDArray[np.bool_]) -> list[set[int]]:
    left, found = set(range(len(near))), []
    while left:
        group, edge = set[int](), {min(left)}
        while edge:
            group |= edge
            edge = {int(j) for i in edge for j in np.flatnonzero(near[i])} - group
        left -= group
        found.append(group)
    return sorted((g for g in found if len(g) > 1), key=lambda g: (-len(g), min(g)))


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.9, 0.97])
def test_groups_equal_brute_force(k: int, threshold: float) -> None:
    rng = np.random.default_rng(0)
    vectors = clustered(150, dim=8)
    copies = vectors[rng.integers(0, 150, 60)] + 0.02 * rng.normal(size=(60, 8))
    vectors = np.concatenate([vectors, copies / np.linalg.norm(copies, axis=1, keepdims=True)])
    vectors = np.concatenate([vectors, vectors[:20]]).astype(np.float32)
    expected = components(scores_of(vectors, "cosine").astype(np.float32) >= threshold)
    groups = duplicate_groups(vectors, nearest(vectors, k, "cosine"), threshold, "cosine")
    found = [set(np.flatnonzero(groups == n).tolist()) for n in range(groups.max() + 1)]
    assert found == expected
    assert len(expected) > 0


def test_many_equal_documents_are_one_group_though_few_are_neighbours() -> None:
    vectors = np.concatenate([np.tile(np.eye(4, dtype=np.float32)[0], (40, 1)), np.eye(4)[1:]])
    found = nearest(vectors.astype(np.float32), 2, "cosine")
    groups = duplicate_groups(vectors.astype(np.float32), found, 0.95, "cosine")
    assert groups.tolist() == [0] * 40 + [-1] * 3


def test_equal_vectors_are_near_duplicates_at_a_cosine_of_1() -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    twice: NDArray[np.float32] = np.tile(vectors, (2, 1)).astype(np.float32)
    found = nearest(twice, 1, "cosine")
    assert found.scores.max() <= 1
    assert (found.distances("cosine") >= 0).all()
    groups = duplicate_groups(twice, found, 1, "cosine")
    assert groups.tolist() == [*range(30), *range(30)]
