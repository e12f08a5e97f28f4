"""Similarity of two sets of vectors, by the functions that a model's configuration may name."""

from __future__ import annotations

import numpy as np

from sbert_search.embedding.protocol import Vectors
from sbert_search.errors import ConfigError


def similarity(first: Vectors, second: Vectors, measure: str = "cosine") -> Vectors:
    """Compute the similarity of each vector of ``first`` to each vector of ``second``.

    Args:
        first: Float (n, dim) or (dim,).
        second: Float (m, dim) or (dim,).
        measure: cosine, dot, euclidean or manhattan; the last two give the negative distance.

    Returns:
        Float32 (n, m); a higher value means more similar vectors.

    Raises:
        ConfigError: The measure is unknown, ``first`` and ``second`` differ in ``dim``, or an
            array has more than two dimensions.
    """
    if measure not in _MEASURES:
        raise ConfigError(f"Unknown similarity {measure!r}; known: {', '.join(_MEASURES)}.")
    first, second = np.atleast_2d(_floats(first)), np.atleast_2d(_floats(second))
    if not first.ndim == second.ndim == 2 or first.shape[1] != second.shape[1]:
        raise ConfigError(
            f"Vectors of the shapes {first.shape} and {second.shape} cannot be compared; pass "
            "(n, dim) and (m, dim), of one model and dimension."
        )
    scores = _MEASURES[measure](first, second)
    return np.asarray(scores, dtype=np.float32)


def _floats(vectors: Vectors) -> Vectors:
    """Copy tensors of a device to the CPU; sums of small integers would overflow, so widen them."""
    if hasattr(vectors, "detach"):
        vectors = vectors.detach().float().cpu().numpy()
    array = np.asarray(vectors)
    return array.astype(np.float32) if array.dtype.kind in "iub" else array


def unit(vectors: Vectors) -> Vectors:
    """Scale vectors to norm 1; a zero vector stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)


def _euclidean(first: Vectors, second: Vectors) -> Vectors:
    scores = np.empty((len(first), len(second)), np.float32)
    for row, vector in enumerate(first):  # one row at a time, to save memory
        scores[row] = -np.linalg.norm(second - vector, axis=1)
    return scores


def _manhattan(first: Vectors, second: Vectors) -> Vectors:
    scores = np.empty((len(first), len(second)), np.float32)
    for row, vector in enumerate(first):
        scores[row] = -np.abs(second - vector).sum(axis=1)
    return scores


_MEASURES = {
    "cosine": lambda first, second: unit(first) @ unit(second).T,
    "dot": lambda first, second: first @ second.T,
    "euclidean": _euclidean,
    "manhattan": _manhattan,
}
