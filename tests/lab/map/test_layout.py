from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.errors import ConfigError
from sbert_search.lab.map.layout import (
    STEPS,
    nearest,
    neighbour_layout,
    principal_axes,
    require_layout_library,
)
from tests.lab.map.conftest import clustered


def ranks(points: NDArray[np.floating]) -> NDArray[np.int64]:
    """Rank of document j among the neighbours of i, from 1; 0 for i itself."""
    distances = np.linalg.norm(points[:, None].astype(float) - points, axis=2)
    np.fill_diagonal(distances, -1)
    return np.argsort(np.argsort(distances, axis=1), axis=1)


def trustworthiness(before: NDArray[np.floating], after: NDArray[np.floating], k: int) -> float:
    """Venna & Kaski 2001: 1 less a penalty for neighbours of the layout that were far before."""
    n, was, near = len(before), ranks(before), ranks(after)
    penalty = sum(max(0, was[i, j] - k) for i in range(n) for j in range(n) if 1 <= near[i, j] <= k)
    return 1 - 2 / (n * k * (2 * n - 3 * k - 1)) * float(penalty)


def test_principal_axes_of_hand_worked_points() -> None:
    vectors = np.array([[3, 0, 5], [-3, 0, 5], [0, 1, 5], [0, -1, 5]], np.float32)
    axes = principal_axes(vectors)
    np.testing.assert_allclose(axes, vectors[:, :2], atol=1e-6)


def test_principal_axes_equal_singular_vectors_and_have_a_fixed_sign() -> None:
    vectors = clustered(200)
    axes = principal_axes(vectors)
    centred = vectors.astype(float) - vectors.astype(float).mean(axis=0)
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    for axis in range(2):
        sign = np.sign(right[axis][np.abs(right[axis]).argmax()])
        np.testing.assert_allclose(axes[:, axis], sign * left[:, axis] * sizes[axis], atol=1e-5)


def test_vectors_of_one_dimension_have_a_second_axis_of_zeros() -> None:
    axes = principal_axes(np.array([[1.0], [2.0], [6.0]], np.float32))
    np.testing.assert_allclose(axes, [[-2, 0], [-1, 0], [3, 0]], atol=1e-6)


@pytest.mark.thorough
def test_the_layout_keeps_neighbours_better_than_principal_axes() -> None:
    vectors = clustered(200, dim=24, n_topics=10)
    axes, steps = principal_axes(vectors), list[int]()
    near = nearest(vectors, 10, "cosine")
    layout = neighbour_layout(near, axes, seed=1, advance=steps.append)
    again = neighbour_layout(near, axes, seed=1)
    np.testing.assert_array_equal(layout, again)
    assert sum(steps) == STEPS
    ours, linear = (trustworthiness(vectors, points, 10) for points in (layout, axes))
    assert ours > 0.9 > linear + 0.1


def test_equal_documents_can_be_laid_out() -> None:
    vectors = np.full((12, 4), 0.5, np.float32)
    near = nearest(vectors, 5, "cosine")
    layout = neighbour_layout(near, principal_axes(vectors), seed=0)
    assert np.isfinite(layout).all()


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_layout_library()
    monkeypatch.setattr("sbert_search.lab.map.layout.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[analyze\]'"):
        require_layout_library()
