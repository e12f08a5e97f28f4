"""Divide documents into clusters by k-means."""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray

MOST_CLUSTERS = 50
_ROUNDS = 100  # largest number of iterations of k-means


def default_clusters(n_documents: int) -> int:
    """Return the default number of clusters: the cube root of ``n_documents``, at most 50."""
    return max(1, min(MOST_CLUSTERS, round(math.cbrt(n_documents))))


def divide(vectors: NDArray[np.float32], n_clusters: int, seed: int) -> NDArray[np.int32]:
    """Divide vectors into clusters, the largest of which has the number 0.

    Args:
        vectors: float32 (n, dim).
        n_clusters: Number of clusters; fewer if there are fewer different vectors.
        seed: Seed of the first centres.

    Returns:
        Number of each vector's cluster, int32 (n,). Of clusters of equal size, the one with the
        earliest vector comes first.

    Source: Arthur & Vassilvitskii 2007, k-means++ (the first centres).
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    means = KMeans(min(n_clusters, len(vectors)), n_init=1, max_iter=_ROUNDS, random_state=seed)
    # With several threads, the order of additions, and so rounding, differs from run to run.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # too few different vectors
        labels = means.fit_predict(vectors)
    _, first, cluster, sizes = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    number = np.empty(len(first), np.int32)
    number[np.lexsort((first, -sizes))] = np.arange(len(first))
    return number[cluster]
