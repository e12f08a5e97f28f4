"""Random numbers as a function of seed, purpose and position, without generator state.

A position is one or more integers, such as epoch and step. A resumed run therefore draws the same
numbers as an uninterrupted one. See "No generator state in a checkpoint" in docs/decisions.md.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.arrays import Ints

PURPOSES = ("init", "order", "dropout", "mask", "sample")

_GOLDEN = np.array([0x9E3779B97F4A7C15], np.uint64)  # an array, so overflow gives no warning


def generator(seed: int, purpose: str, *position: int) -> np.random.Generator:
    """Return the generator for a seed, purpose and position, such as ``(seed, "order", epoch)``."""
    return np.random.Generator(np.random.Philox(_sequence(seed, purpose, position)))


def uniforms(seed: int, purpose: str, *position: int | Ints) -> NDArray[np.float64]:
    """Draw one number in [0, 1) for each of many positions; it does not depend on the others.

    A position has integers of at least 0, or arrays of these that broadcast, such as epoch, example
    and token. Each component selects one output of the SplitMix64 generator whose seed is the hash
    of the components before it (Steele, Lea & Flood 2014).
    """
    state = np.array([seed], np.uint64)
    for part in (PURPOSES.index(purpose), *position):
        state = state + (np.asarray(part).astype(np.uint64) + np.uint64(1)) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def seed_all(seed: int, purpose: str, *position: int) -> None:
    """Seed the global generators of torch, Python and NumPy, for dropout, which has no other."""
    import torch

    word = int(_sequence(seed, purpose, position).generate_state(1, np.uint64)[0])
    torch.manual_seed(word)
    random.seed(word)
    np.random.seed(word % 2**32)  # noqa: NPY002 (the legacy generator is the global one)


def _sequence(seed: int, purpose: str, position: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence((seed, PURPOSES.index(purpose), *position))
