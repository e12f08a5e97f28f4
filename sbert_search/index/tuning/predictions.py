"""Predicting how long builds and searches take, from smaller ones that were timed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense.faiss_build import ROWS_PER_LIST
from sbert_search.index.dense.faiss_runtime import import_faiss
from sbert_search.index.spec import IndexSpec

_ROUNDS = 10  # iterations of FAISS's k-means


@dataclass(frozen=True, slots=True)
class BuildTime:
    """The measured or predicted seconds of one build.

    Attributes:
        spec: The spec of the index.
        n_rows: Number of rows of the index.
        train_s: Seconds to train centroids and codes.
        add_s: Seconds to add the rows.
    """

    spec: IndexSpec
    n_rows: int
    train_s: float
    add_s: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole build."""
        return self.train_s + self.add_s


def assign_seconds(vectors: NDArray[np.float32]) -> float:
    """Measure the seconds that this machine needs to compare one vector with one centroid.

    Args:
        vectors: Some vectors of the index, float32 (n, dim); a part of them serves as centroids.
    """
    faiss = import_faiss()
    rows, lists = vectors[:4096], vectors[:512]
    faiss.knn(rows[:512], lists, 1)  # warm-up
    start = time.perf_counter()
    faiss.knn(rows, lists, 1)
    return (time.perf_counter() - start) / (len(rows) * len(lists))


def predict(known: BuildTime, spec: IndexSpec, n_rows: int, assign_s: float) -> BuildTime:
    """Predict the time of a build from a measured build with another number of rows.

    The model of the costs: An HNSW graph of n rows takes time in proportion to n log n. The
    training of an IVF is k-means, whose time follows from ``assign_s``, and then the training of
    the codes, whose time does not depend on the number of rows. To add a row to an IVF, FAISS
    compares it with each centroid and encodes it.

    Args:
        known: The measured build, of the same kind of index.
        spec: The spec of the index to build.
        n_rows: Number of rows of the index to build.
        assign_s: Result of `assign_seconds`.
    """
    if not spec.n_lists:
        growth = math.log(n_rows) / math.log(known.n_rows) if spec.is_hnsw else 1.0
        add_s = known.add_s * n_rows / known.n_rows * growth
        return BuildTime(spec, n_rows, known.train_s, add_s)
    codes_s = max(known.train_s - _kmeans_seconds(known.spec, known.n_rows, assign_s), 0.0)
    row_s = max(known.add_s / known.n_rows - known.spec.n_lists * assign_s, 0.0)
    train_s = codes_s + _kmeans_seconds(spec, n_rows, assign_s)
    return BuildTime(spec, n_rows, train_s, n_rows * (row_s + spec.n_lists * assign_s))


def predict_latency(
    known_ms: float, spec: IndexSpec, known_rows: int, segments: list[int]
) -> float:
    """Predict the latency in ms of a query that searches several segments one by one.

    In a segment of n rows, the latency grows with log n for HNSW and with n for an exact scan. For
    IVF with a fixed nprobe it grows with the square root of n, as do the number of lists and the
    length of a list (see `candidates.lists_for`).

    Args:
        known_ms: Latency measured on a sample.
        spec: The spec of the index.
        known_rows: Number of rows of the sample.
        segments: Number of rows in each segment.
    """
    if spec.is_hnsw:
        growth = [math.log(n) / math.log(known_rows) for n in segments]
    elif spec.n_lists:
        growth = [math.sqrt(n / known_rows) for n in segments]
    else:
        growth = [n / known_rows for n in segments]
    return known_ms * sum(growth)


def _kmeans_seconds(spec: IndexSpec, n_rows: int, assign_s: float) -> float:
    sample = min(n_rows, spec.n_lists * ROWS_PER_LIST)
    return _ROUNDS * sample * spec.n_lists * assign_s
