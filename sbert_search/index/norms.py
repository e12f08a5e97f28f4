"""Euclidean norms of vectors, and vectors scaled to norm 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.floating]

# Largest error of a cosine. The length of a float32 vector is not exactly 1 after normalisation, so
# the cosine of equal vectors may be below 0.9999998, as for some of 1,024 dimensions.
_COSINE_ERROR = 1e-6
# Half a unit in the last place of each component, and of the smallest ones in 65,536 dimensions.
_FLOAT16_UNIT = 2.0**-11 + 2.0**-16


def unit_vectors(vectors: Vectors) -> NDArray[np.float32]:
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


def stored_units(
    vectors: Vectors, units: NDArray[np.float32], norms: NDArray[np.float64], dtype: str
) -> Vectors:
    """Return vectors of norm 1, ``units``, in the type in which an index stores them.

    Rounding to float16 changes a norm of 1 by up to `_FLOAT16_UNIT`. A vector of float16 values
    with such a norm is kept, since scaling and rounding it once more would change it. So an index
    that is made from the stored vectors of a float16 index has the same vectors, and ranks alike.
    ``units`` are ``vectors`` (n, dim) divided by their ``norms`` (n,).
    """
    stored = units.astype(dtype, copy=False)
    if dtype == "float16":
        rows = np.flatnonzero(np.abs(norms - 1) <= _FLOAT16_UNIT)
        rounded = vectors[rows].astype(np.float16)
        rows = rows[same := (rounded == vectors[rows]).all(axis=1)]
        stored[rows] = rounded[same]
    return stored


def least_score(threshold: float, metric: str, dtype: str = "float32") -> float:
    """Lower a threshold of scores by their rounding error, if they are cosines.

    So a threshold of 1 finds the vectors that are equal to the query, whose cosine may be rounded
    to less than 1. A float16 index rounds more: a threshold from 0.999 to 1 counts as 0.999.
    """
    if metric != "cosine" or threshold > 1:  # no cosine is above 1
        return threshold
    largest = 1.0 if dtype == "float32" else (1 - _FLOAT16_UNIT) ** 2
    return min(threshold, largest) - _COSINE_ERROR


def equal_as_ones(cosines: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """Return cosines (n,) in which those of equal vectors, which may be rounded, are 1."""
    return np.where(cosines >= least_score(1.0, "cosine", dtype), 1.0, cosines)


def largest_norm(vectors: Vectors) -> float:
    """Return the largest norm among vectors (n, dim); 0 when there are none."""
    if len(vectors) == 0:
        return 0.0
    blocks = (vectors[i : i + 4096].astype(np.float64) for i in range(0, len(vectors), 4096))
    return float(np.sqrt(max(np.einsum("nd,nd->n", b, b).max() for b in blocks)))
