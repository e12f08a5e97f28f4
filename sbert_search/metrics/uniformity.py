"""How embeddings lie on the sphere: near where texts mean the same, spread out otherwise.

Source: Wang & Isola 2020, Understanding Contrastive Representation Learning through Alignment and
Uniformity on the Hypersphere, section 4.1 (arXiv:2005.10242). Lower is better of both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.floating]

_ROWS = 1024  # compared with all others at once


def alignment(first: Vectors, second: Vectors) -> float:
    """Mean squared distance of texts that mean the same.

    Args:
        first: Unit vectors, (n, dim), n at least 1.
        second: Unit vector of the text that belongs to each, (n, dim).

    Returns:
        From 0, where all pairs are equal, to 4.
    """
    return float(np.square(first - second).sum(axis=1).mean())


def uniformity(vectors: Vectors, t: float = 2.0) -> float:
    """Logarithm of the mean Gaussian potential of all pairs of texts.

    Args:
        vectors: Unit vectors, (n, dim), n at least 2.
        t: How fast the potential falls with squared distance.

    Returns:
        From -4t, which no set of vectors reaches, to 0, where all are equal.
    """
    n, total = len(vectors), 0.0
    for start in range(0, n, _ROWS):
        squared = 2 - 2 * (vectors[start : start + _ROWS] @ vectors.T)
        total += float(np.exp(-t * squared, dtype=np.float64).sum())
    return float(np.log((total - n) / (n * (n - 1))))  # a text is no pair with itself
