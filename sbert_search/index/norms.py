"""Euclidean norms of vectors, and vectors scaled to norm 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def normalised(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Scale vectors (n, dim) to unit length; a zero vector stays zero."""
    return scaled(vectors, lengths_of(vectors))


def lengths_of(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the Euclidean lengths of vectors (n, dim), not finite where one of them is not."""
    lengths: NDArray[np.float64] = np.sqrt(
        np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)
    )
    return lengths


def scaled(vectors: NDArray[np.floating[Any]], lengths: NDArray[np.float64]) -> NDArray[np.float32]:
    """Divide vectors (n, dim) by their lengths (n,), those of zero vectors by 1."""
    lengths += lengths == 0
    unit: NDArray[np.float32] = (vectors / lengths[:, None]).astype(np.float32)
    return unit


def largest_norm(vectors: NDArray[np.floating[Any]]) -> float:
    """Return the largest Euclidean length of some vectors (n, dim)."""
    if len(vectors) == 0:
        return 0.0
    blocks = (vectors[i : i + 4096].astype(np.float64) for i in range(0, len(vectors), 4096))
    return float(np.sqrt(max(np.einsum("nd,nd->n", b, b).max() for b in blocks)))
