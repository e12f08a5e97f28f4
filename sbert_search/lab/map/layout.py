"""Two layouts of documents in the plane: principal components, and t-SNE of nearest neighbours."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import Advance
from sbert_search.errors import ConfigError
from sbert_search.lab.map.neighbours import Neighbours

EARLY_STEPS, LATE_STEPS = 250, 500  # openTSNE's defaults
EXAGGERATION = 12.0  # factor of all attraction in the early steps
MANY = 10_000  # from this number of documents on, the late steps exaggerate attraction, too
LATE_EXAGGERATION = 4.0  # separates the clusters of a large map and keeps the map small
STEPS = EARLY_STEPS + LATE_STEPS
_REPORTED = 10  # steps between two reports of progress
_START = 1e-4  # standard deviation of the x coordinates before the first step

Floats = NDArray[np.float32]


def require_layout_library() -> None:
    """Check that openTSNE can be imported, before work starts.

    Raises:
        ConfigError: openTSNE is not installed.
    """
    if find_spec("openTSNE") is None:
        raise ConfigError(
            "A map needs openTSNE; install it with `pip install 'sbert-search[analyze]'`."
        )


def principal_axes(vectors: Floats) -> Floats:
    """Project vectors on the two directions of their largest variance.

    Each direction has the sign for which its component of largest absolute value is positive.

    Args:
        vectors: float32 (n, dim), n of 2 or more.

    Returns:
        float32 (n, 2); a second axis of zeros if dim is 1.
    """
    mean = vectors.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((vectors.shape[1],) * 2)
    for start in range(0, len(vectors), 1 << 14):
        centred = vectors[start : start + (1 << 14)] - mean
        covariance += centred.T @ centred
    directions = np.linalg.eigh(covariance)[1][:, :-3:-1]  # eigenvalues ascend
    largest = np.abs(directions).argmax(axis=0)
    directions *= np.sign(directions[largest, np.arange(directions.shape[1])])
    axes = np.zeros((len(vectors), 2), np.float32)
    axes[:, : directions.shape[1]] = vectors @ directions - mean @ directions
    return axes


def neighbour_layout(
    neighbours: Neighbours, start: Floats, seed: int, advance: Advance = lambda n: None
) -> Floats:
    """Lay documents out so that near neighbours lie close together, by t-SNE.

    All nearest neighbours attract a document equally. The start from the principal axes preserves
    more of the global structure than a random start would.

    Args:
        neighbours: The nearest documents of each document.
        start: Result of `principal_axes`, float32 (n, 2).
        seed: Seed of the noise that separates equal vectors.
        advance: Called every 10 steps with the number of steps since the last call.

    Returns:
        float32 (n, 2). The same arguments give the same layout on the same machine.

    Source: van der Maaten & Hinton 2008; Linderman et al. 2019 (FIt-SNE); Kobak & Berens 2019
    (start from the principal axes, late exaggeration); Boehm, Berens & Kobak 2022 (equal
    attraction).
    """
    from openTSNE import TSNEEmbedding, affinity, nearest_neighbors

    graph = nearest_neighbors.PrecomputedNeighbors(neighbours.at, neighbours.scores)
    affinities = affinity.Uniform(knn_index=graph, symmetrize="max")

    def report(*_: object) -> None:
        advance(_REPORTED)

    layout = TSNEEmbedding(
        _small(start, seed),
        affinities,
        random_state=seed,
        callbacks=report,
        callbacks_every_iters=_REPORTED,
    )
    layout = layout.optimize(EARLY_STEPS, exaggeration=EXAGGERATION, momentum=0.8)
    late = LATE_EXAGGERATION if len(start) >= MANY else None
    layout = layout.optimize(LATE_STEPS, exaggeration=late, momentum=0.8)
    return np.asarray(layout, np.float32)


def _small(start: Floats, seed: int) -> NDArray[np.float64]:
    """Scale a layout to the size that t-SNE starts from, and separate equal points by noise."""
    wide = start.astype(np.float64)
    spread = wide[:, 0].std() or 1.0
    noise = np.random.default_rng(seed).normal(scale=_START / 100, size=wide.shape)
    return wide / spread * _START + noise
