import random

import numpy as np
import torch

from sbert_search.runtime.seed import generator, seed_all


def test_a_place_in_the_work_always_draws_the_same() -> None:
    first = generator(1, "order", 2).permutation(100)
    assert np.array_equal(first, generator(1, "order", 2).permutation(100))
    for other in (generator(1, "order", 3), generator(2, "order", 2), generator(1, "mask", 2)):
        assert not np.array_equal(first, other.permutation(100))


def test_the_global_generators_follow_the_place() -> None:
    def draw(*place: int) -> tuple[float, float, float]:
        seed_all(7, "dropout", *place)
        return torch.rand(1).item(), random.random(), float(np.random.rand())  # noqa: NPY002

    assert draw(1, 0) == draw(1, 0)
    assert all(a != b for a, b in zip(draw(1, 0), draw(2, 0), strict=True))
