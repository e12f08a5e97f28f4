from __future__ import annotations

import numpy as np
import pytest

from sbert_search.lab.map.clusters import default_clusters, divide
from tests.lab.map.conftest import clustered


@pytest.mark.parametrize(("n", "expected"), [(3, 1), (8, 2), (400, 7), (100_000, 46), (10**7, 50)])
def test_the_default_is_the_cube_root_up_to_fifty(n: int, expected: int) -> None:
    assert default_clusters(n) == expected


def test_clusters_are_the_topics_and_the_largest_comes_first() -> None:
    vectors = clustered(91)  # topic 0 has one more document than the others
    found = divide(vectors, 3, seed=0)
    np.testing.assert_array_equal(found, np.arange(91) % 3)
    np.testing.assert_array_equal(found, divide(vectors, 3, seed=0))


def test_equal_vectors_give_fewer_clusters_without_a_warning() -> None:
    assert divide(np.ones((5, 3), np.float32), 4, seed=0).tolist() == [0] * 5
    assert set(divide(clustered(3), 10, seed=0).tolist()) == {0, 1, 2}
