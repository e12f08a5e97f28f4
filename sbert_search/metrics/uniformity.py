"""Alignment and uniformity of embeddings on the unit sphere.

Source: Wang & Isola 2020, Understanding Contrastive Representation Learning through Alignment and
Uniformity on the Hypersphere, section 4.1 (arXiv:2005.10242). Lower values of both are better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.floating]

_ROWS = 1024  # rows compared with all others at a time


def alignment(first: Vectors, second: Vectors) -> float:
    """Mean squared distance between the embeddings of texts that mean the same.

    Args:
        first: Unit vectors, (n, dim), n at least 1.
        second: Unit vectors of the matching texts, (n, dim).

    Returns:
        From 0 (all pairs equal) to 4.
    """
    return float(np.square(first - second).sum(axis=1).mean())


def uniformity(vectors: Vectors, t: float = 2.0) -> float:
    """Logarithm of the mean Gaussian potential of all pairs of texts.

    Args:
        vectors: Unit vectors, (n, dim), n at least 2.
        t: Factor of the squared distance in the exponent.

    Returns:
        From -4t (two opposite vectors) to 0 (all vectors equal).
    """
    n, total = len(vectors), 0.0
    for start in range(0, n, _ROWS):
        squared = 2 - 2 * (vectors[start : start + _ROWS] @ vectors[start:].T)
        potentials = np.exp(-t * squared)
        within = potentials[:, : len(potentials)]  # pairs that this block counts in both orders
        total += 2 * potentials.sum(dtype=np.float64) - within.sum(dtype=np.float64)
    return float(np.log((total - n) / (n * (n - 1))))  # without pairs of a text with itself
