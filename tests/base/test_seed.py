import random

import numpy as np
import torch

from sbert_search.base.seed import generator, seed_all, uniforms


def test_a_place_in_the_work_always_draws_the_same() -> None:
    first = generator(1, "order", 2).permutation(100)
    assert np.array_equal(first, generator(1, "order", 2).permutation(100))
    for other in (generator(1, "order", 3), generator(2, "order", 2), generator(1, "mask", 2)):
        assert not np.array_equal(first, other.permutation(100))


def test_many_places_draw_at_once_what_each_draws_alone() -> None:
    rows, columns = np.arange(300)[:, None], np.arange(400)
    drawn = uniforms(7, "mask", 2, rows, columns)
    assert drawn.shape == (300, 400)
    assert drawn[17, 33] == uniforms(7, "mask", 2, 17, 33)[0]
    for other in (uniforms(8, "mask", 2, rows, columns), uniforms(7, "mask", 3, rows, columns)):
        assert abs(np.corrcoef(drawn.ravel(), other.ravel())[0, 1]) < 0.01
    # 120,000 even draws: the mean has a standard deviation of 0.0008, a tenth of them 0.0009.
    assert abs(drawn.mean() - 0.5) < 0.004
    shares = np.histogram(drawn, bins=10, range=(0, 1))[0] / drawn.size
    assert np.abs(shares - 0.1).max() < 0.005
    assert len(np.unique(drawn)) == drawn.size
    for axis in (0, 1):  # neighbours in either direction have nothing in common
        near = np.corrcoef(drawn.ravel(), np.roll(drawn, 1, axis).ravel())[0, 1]
        assert abs(near) < 0.015


def test_the_global_generators_follow_the_place() -> None:
    def draw(*place: int) -> tuple[float, float, float]:
        seed_all(7, "dropout", *place)
        return torch.rand(1).item(), random.random(), float(np.random.rand())  # noqa: NPY002

    assert draw(1, 0) == draw(1, 0)
    assert all(a != b for a, b in zip(draw(1, 0), draw(2, 0), strict=True))
