"""Types of arrays, and operations on them, that several subpackages use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MAX_NORM = 1e18
"""Largest norm of a vector that is not scaled to norm 1.

Scores of longer vectors could be larger than the largest float32.
"""


def distinct(values: Ints) -> Ints:
    """Return the distinct values, ascending, int64 (m,).

    `numpy.unique` is not used: its first call imports the subpackage of masked arrays, which would
    delay a search in a new process.
    """
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def too_long(vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether each vector (n, dim) has a norm above `MAX_NORM` or contains NaN; bool (n,)."""
    with np.errstate(over="ignore"):
        squares = np.einsum("nd,nd->n", vectors, vectors)
    return np.asarray(~(squares <= MAX_NORM**2))
