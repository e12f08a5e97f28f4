"""Similarity of two sets of vectors, and vectors as small integers or bits."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.protocol import Vectors
from sbert_search.errors import ConfigError


def similarity(first: Vectors, second: Vectors, measure: str = "cosine") -> Vectors:
    """Compute the similarity of each vector of ``first`` to each of ``second``; float32 (n, m).

    Both are float, (n, dim) and (m, dim), or (dim,) for one vector. The measures are cosine, dot,
    euclidean and manhattan; the last two give the negative distance, so that a higher value always
    means more similar vectors.
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


VectorPrecision = Literal["float32", "int8", "uint8", "binary", "ubinary"]


def quantize(
    vectors: Vectors, precision: VectorPrecision
) -> Vectors | NDArray[np.int8] | NDArray[np.uint8]:
    """Quantise vectors.

    Args:
        vectors: Float32 (n, dim).
        precision: One of these:

            - ``float32``: no change.
            - ``uint8``: The range of each dimension, from its lowest to its highest value among the
              vectors, is divided into 255 equal steps. A value becomes the number of whole steps
              between the lowest value and this value, 0 to 255.
            - ``int8``: The number of ``uint8`` minus 128.
            - ``ubinary``: One bit for each dimension: 1 for a value above 0, otherwise 0. Eight
              bits make a byte; the first dimension is its highest bit.
            - ``binary``: The bytes of ``ubinary`` minus 128.

    Returns:
        Float32, int8 or uint8, (n, dim); with ``binary`` and ``ubinary`` (n, ceil(dim / 8)).

    Raises:
        ConfigError: The precision is int8 or uint8, and there is only one vector, so that no
            dimension has a range.
    """
    if precision == "float32":
        return vectors
    if precision in ("ubinary", "binary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits - np.int16(128)).astype(np.int8)
    if len(vectors) == 1:
        raise ConfigError(
            f"precision {precision!r} needs at least two texts in a call, because it scales each "
            "dimension by its range over these texts. Encode more texts together, or use float32."
        )
    if len(vectors) == 0:
        return np.empty(vectors.shape, np.int8) if precision == "int8" else vectors.astype(np.uint8)
    low = vectors.min(axis=0)
    steps = (vectors.max(axis=0) - low) / 255
    steps = np.where(steps == 0, 1, steps)
    numbers: Vectors = np.clip(np.floor((vectors - low) / steps), 0, 255)
    if precision == "uint8":
        return numbers.astype(np.uint8)
    return (numbers - 128).astype(np.int8)
