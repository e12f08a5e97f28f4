import math

import numpy as np
import pytest

from sbert_search.evaluate.metrics.isotropy import alignment, uniformity

AXES = np.eye(3)


def test_alignment_by_hand() -> None:
    assert alignment(AXES, AXES) == 0.0
    assert alignment(AXES, np.roll(AXES, 1, axis=0)) == pytest.approx(2.0)
    assert alignment(AXES[:1], -AXES[:1]) == pytest.approx(4.0)


def test_uniformity_by_hand() -> None:
    assert uniformity(AXES) == pytest.approx(-4.0)  # every pair at squared distance 2
    assert uniformity(np.repeat(AXES[:1], 4, axis=0)) == pytest.approx(0.0, abs=1e-9)
    opposite = np.concatenate([AXES[:1], -AXES[:1], AXES[1:2]])
    assert uniformity(opposite) == pytest.approx(math.log((math.exp(-8) + 2 * math.exp(-4)) / 3))


def test_blocks_change_nothing() -> None:
    vectors = np.random.default_rng(0).normal(size=(1500, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    squared = ((vectors[:, None] - vectors[None]) ** 2).sum(-1)[np.triu_indices(1500, 1)]
    assert uniformity(vectors) == pytest.approx(np.log(np.exp(-2 * squared).mean()), abs=1e-5)
