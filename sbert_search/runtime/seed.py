"""Randomness as a function of where we are, so that no generator's state need ever be kept.

A draw depends on (seed, what it is for, epoch, step, ...) alone: work that is killed and goes on,
or that repeats a part, draws what it would have drawn.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from sbert_search.runtime.arrays import Ints

PURPOSES = ("init", "order", "dropout", "mask", "sample")

_GOLDEN = np.array([0x9E3779B97F4A7C15], np.uint64)  # an array: its products wrap around


def generator(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """Make the generator of one place in the work, such as ``(seed, "order", epoch)``."""
    return np.random.Generator(np.random.Philox(_sequence(seed, purpose, place)))


def uniforms(seed: int, purpose: str, *place: int | Ints) -> NDArray[np.float64]:
    """Draw one number in [0, 1) for each of many places at once.

    Each is a hash of its own place, so it does not depend on which others are drawn with it.

    Args:
        seed: Of the run, at least 0.
        purpose: One of `PURPOSES`.
        place: Numbers of at least 0 and arrays of them, such as epoch, examples, positions; they
            broadcast.

    Source: Steele, Lea & Flood 2014, SplitMix64: each part of a place picks an output of the
    generator that the parts before it seed.
    """
    state = np.array([seed], np.uint64)
    for part in (PURPOSES.index(purpose), *place):
        state = state + (np.asarray(part).astype(np.uint64) + np.uint64(1)) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


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
