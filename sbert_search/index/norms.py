"""Euclidean norms of vectors, and vectors scaled to norm 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.floating]


def normalised(vectors: Vectors) -> NDArray[np.float32]:
    """Return vectors (n, dim) scaled to norm 1; a zero vector stays zero."""
    return divide_by_norms(vectors, norms_of(vectors))


def norms_of(vectors: Vectors) -> NDArray[np.float64]:
    """Return the norms (n,) of vectors (n, dim); NaN or infinite if a vector is not finite."""
    norms: NDArray[np.float64] = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    return norms


def divide_by_norms(vectors: Vectors, norms: NDArray[np.float64]) -> NDArray[np.float32]:
    """Divide vectors (n, dim) by their norms (n,), after changing each norm of 0 to 1 in place."""
    norms += norms == 0
    unit: NDArray[np.float32] = (vectors / norms[:, None]).astype(np.float32)
    return unit


def largest_norm(vectors: Vectors) -> float:
    """Return the largest norm among vectors (n, dim); 0 when there are none."""
    if len(vectors) == 0:
        return 0.0
    blocks = (vectors[i : i + 4096].astype(np.float64) for i in range(0, len(vectors), 4096))
    return float(np.sqrt(max(np.einsum("nd,nd->n", b, b).max() for b in blocks)))
