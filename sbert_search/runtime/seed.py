"""Randomness as a function of where we are, so that no generator's state need ever be kept.

A draw depends on (seed, what it is for, epoch, step, ...) alone: work that is killed and goes on,
or that repeats a part, draws what it would have drawn.
"""

from __future__ import annotations

import random

import numpy as np

PURPOSES = ("init", "order", "dropout", "mask", "sample")


def generator(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """Make the generator of one place in the work, such as ``(seed, "order", epoch)``."""
    return np.random.Generator(np.random.Philox(_sequence(seed, purpose, place)))


def seed_all(seed: int, purpose: str, *place: int) -> None:
    """Seed the global generators of torch (every device), Python and numpy for one place.

    Dropout has no other generator to draw from; code of our own uses `generator`.
    """
    import torch

    word = int(_sequence(seed, purpose, place).generate_state(1, np.uint64)[0])
    torch.manual_seed(word)
    random.seed(word)
    np.random.seed(word % 2**32)  # noqa: NPY002 (the legacy generator is the global one)


def _sequence(seed: int, purpose: str, place: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence((seed, PURPOSES.index(purpose), *place))
