"""The nearest documents of each document, near-duplicates, and layouts in the plane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import Advance
from sbert_search.errors import ConfigError, install
from sbert_search.index.dense.exact import QUERY_BLOCK, TopK, exact_scores, scan
from sbert_search.index.norms import largest_norm, least_score
from sbert_search.index.storage.manifest import Metric
from sbert_search.search.pairs import Pairs, at_most_one, clusters

MOST_COPIES = 64  # if more vectors are equal, each different vector is searched only once
_ROUNDING = 1e-5  # largest error of a float32 dot product, divided by both norms

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The k nearest documents of each of n documents, best first."""

    at: NDArray[np.int32]  # numbers among the n documents, int32 (n, k)
    scores: Floats  # of the metric, higher is nearer, float32 (n, k); a cosine is at most 1

    def distances(self, metric: Metric) -> Floats:
        """Mean distance of each document to its neighbours, float32 (n,).

        The distance is 1 minus the cosine, the negative dot product or the Euclidean distance.
        """
        mean: Floats = self.scores.mean(axis=1, dtype=np.float64).astype(np.float32)
        return 1 - mean if metric == "cosine" else -mean


def nearest(
    vectors: Floats, k: int, metric: Metric, advance: Advance = lambda n: None
) -> Neighbours:
    """Find the k nearest other documents of each document, as an exact search of an index does.

    Vectors are finite, float32 (n, dim); n must be above k. Documents with equal scores are in the
    order in which they were added. ``advance`` gets the number of documents of each finished block.
    """
    groups = _group_equal_vectors(vectors)
    if max(map(len, groups)) > MOST_COPIES:
        return _nearest_of_groups(vectors, groups, k, metric, advance)
    n, max_norm = len(vectors), largest_norm(vectors)
    rows = np.arange(n)
    at, scores = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    for start in range(0, n, QUERY_BLOCK):
        block = slice(start, min(start + QUERY_BLOCK, n))
        top = TopK.empty(block.stop - start, k + 1)
        scan(vectors[block], vectors, top, rows, metric=metric, max_norm=max_norm)
        itself = top.rows == rows[block, None]
        # A document is not among its own k + 1 hits if k + 1 others rank before it: documents that
        # were added earlier with an equal vector or, with the metric dot, documents with longer
        # vectors. Then the last hit is left out instead of the document itself.
        itself[~itself.any(axis=1), k] = True
        at[block] = top.rows[~itself].reshape(-1, k)
        scores[block] = top.scores[~itself].reshape(-1, k)
        advance(block.stop - start)
    return Neighbours(at, at_most_one(scores, metric))


def _group_equal_vectors(vectors: Floats) -> list[NDArray[np.int64]]:
    """Group the documents with equal vectors; groups and their documents are in ascending order."""
    groups: dict[bytes, list[int]] = {}
    for row, vector in enumerate(np.ascontiguousarray(vectors)):
        groups.setdefault(blake2b(vector, digest_size=16).digest(), []).append(row)
    return [np.array(rows, np.int64) for rows in groups.values()]


def _nearest_of_groups(
    vectors: Floats,
    groups: Sequence[NDArray[np.int64]],
    k: int,
    metric: Metric,
    advance: Advance,
) -> Neighbours:
    """Return the same as `nearest`, with one search for each different vector.

    A search among many equal vectors would compute the score of each of them again in float64.
    """
    n, own = len(vectors), vectors[[rows[0] for rows in groups]]
    max_norm, every = largest_norm(own), np.arange(len(groups))
    at, scores = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    for start in range(0, len(groups), QUERY_BLOCK):
        block = every[start : start + QUERY_BLOCK]
        # Each group has at least one document, so the best k + 1 documents are in the best k + 1
        # groups.
        top = TopK.empty(len(block), min(k + 1, len(groups)))
        scan(own[block], own, top, every, metric=metric, max_norm=max_norm)
        for place, hits, values in zip(block, top.rows, top.scores, strict=True):
            parts = [groups[hit][: k + 1] for hit in hits]
            found = np.concatenate(parts)
            score = np.repeat(values, [len(part) for part in parts])
            best = np.lexsort((found, -score))[: k + 1]
            found, score = found[best], score[best]
            for document in groups[place]:
                others = np.flatnonzero(found != document)[:k]
                at[document], scores[document] = found[others], score[others]
        advance(sum(len(groups[place]) for place in block))
    return Neighbours(at, at_most_one(scores, metric))


def duplicate_groups(
    vectors: Floats,
    neighbours: Neighbours,
    threshold: float,
    metric: Metric,
    advance: Advance = lambda n: None,
) -> NDArray[np.int32]:
    """Group near-duplicates: two documents whose score is at least ``threshold`` share a group.

    A chain of such pairs is one group, so two documents of a group may have a lower score. Cosines
    may be lower than the threshold by 1e-6, their rounding error. The metric is cosine or dot
    product, and ``neighbours`` are the result of `nearest` for these vectors, float32 (n, dim).

    The result has the number of each document's group, int32 (n,); -1: no near-duplicate. Group 0
    is the largest; of groups of equal size, the one with the earliest document comes first.
    """
    n, k = neighbours.at.shape
    threshold = least_score(threshold, metric)
    one, place = np.nonzero(neighbours.scores >= threshold)
    other = neighbours.at[one, place].astype(np.int64)
    found = Pairs(one, other, neighbours.scores[one, place])
    labels = np.arange(n)
    for group in clusters([found]):
        labels[group] = group[0]
    # If all k neighbours of a document reach the threshold, others may reach it too.
    full = np.flatnonzero(neighbours.scores[:, k - 1] >= threshold)
    advance(n - len(full))
    for block, near in _all_near(vectors, full, threshold, metric):
        for document, marks in zip(block.tolist(), near, strict=True):
            joined = np.unique(labels[marks])
            if len(joined) > 1:
                labels[np.isin(labels, joined)] = min(joined[0], labels[document])
        advance(len(block))
    return _number_groups(labels)


def _all_near(
    vectors: Floats, documents: NDArray[np.int64], threshold: float, metric: Metric
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Find all documents whose score with one of ``documents`` is at least ``threshold``.

    Yields a block of ``documents``, int64 (n_block,), and a matrix, bool (n_block, n): whether each
    of all documents is near. Scores are dot products in float32; those near the threshold are
    computed again in float64, as the exact search does.
    """
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    for start in range(0, len(documents), QUERY_BLOCK):
        block = documents[start : start + QUERY_BLOCK]
        scores = vectors[block] @ vectors.T
        slack = _ROUNDING * np.outer(norms[block], norms)
        near = scores >= threshold
        one, other = np.nonzero(np.abs(scores - np.float32(threshold)) <= slack)
        near[one, other] = exact_scores(vectors[block], vectors, one, other, metric) >= threshold
        yield block, near


def _number_groups(labels: NDArray[np.int64]) -> NDArray[np.int32]:
    first, group, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    number = np.full(len(first), -1, np.int32)
    several = np.flatnonzero(sizes > 1)
    number[several[np.lexsort((first[several], -sizes[several]))]] = np.arange(len(several))
    return number[group]


EARLY_STEPS, LATE_STEPS = 250, 500  # openTSNE's defaults
EXAGGERATION = 12.0  # factor of all attraction in the early steps
MANY = 10_000  # from this number of documents on, the late steps exaggerate attraction, too
LATE_EXAGGERATION = 4.0  # separates the clusters of a large map and keeps the map small
STEPS = EARLY_STEPS + LATE_STEPS
_REPORTED = 10  # steps between two reports of progress
_START = 1e-4  # standard deviation of the x coordinates before the first step


def require_layout_library() -> None:
    """Check that openTSNE can be imported, before work starts."""
    if find_spec("openTSNE") is None:
        raise ConfigError(f"A map needs openTSNE: {install('analyze')}.")


def principal_axes(vectors: Floats) -> Floats:
    """Project vectors, (n, dim), on the two directions of their largest variance, float32 (n, 2).

    Each direction has the sign for which its component of largest absolute value is positive. The
    second axis is all zeros if dim is 1.
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
    """Lay documents out so that near neighbours lie close together, by t-SNE; float32 (n, 2).

    All nearest neighbours attract a document equally. The start, the result of `principal_axes`,
    preserves more of the global structure than a random start would. The seed is that of the noise
    that separates equal vectors. The same arguments give the same layout on the same machine.
    ``advance`` gets the number of steps since its last call.

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
        _scale_and_jitter(start, seed),
        affinities,
        random_state=seed,
        callbacks=report,
        callbacks_every_iters=_REPORTED,
    )
    layout = layout.optimize(EARLY_STEPS, exaggeration=EXAGGERATION, momentum=0.8)
    late = LATE_EXAGGERATION if len(start) >= MANY else None
    layout = layout.optimize(LATE_STEPS, exaggeration=late, momentum=0.8)
    return np.asarray(layout, np.float32)


def _scale_and_jitter(start: Floats, seed: int) -> NDArray[np.float64]:
    """Scale a layout to the size that t-SNE starts from, and separate equal points by noise."""
    wide = start.astype(np.float64)
    spread = wide[:, 0].std() or 1.0
    noise = np.random.default_rng(seed).normal(scale=_START / 100, size=wide.shape)
    return wide / spread * _START + noise
