"""Seconds predicted from a smaller build that was timed; bytes are predicted by `IndexSpec`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense.faiss_build import ROWS_PER_LIST
from sbert_search.index.dense.faiss_runtime import import_faiss
from sbert_search.index.spec import IndexSpec

_ROUNDS = 10  # of k-means over the centroids


@dataclass(frozen=True, slots=True)
class BuildTime:
    """Seconds that one build took.

    Attributes:
        spec: What was built.
        n_rows: Of how many rows.
        train_s: Centroids and codes.
        add_s: Filling.
    """

    spec: IndexSpec
    n_rows: int
    train_s: float
    add_s: float

    @property
    def seconds(self) -> float:
        """The whole build."""
        return self.train_s + self.add_s


def assign_seconds(vectors: NDArray[np.float32]) -> float:
    """Time how long comparing one vector with one centroid takes on this machine."""
    faiss = import_faiss()
    rows, lists = vectors[:4096], vectors[:512]
    faiss.knn(rows[:512], lists, 1)
    start = time.perf_counter()
    faiss.knn(rows, lists, 1)
    return (time.perf_counter() - start) / (len(rows) * len(lists))


def predict(known: BuildTime, spec: IndexSpec, n_rows: int, assign_s: float) -> BuildTime:
    """Scale the time of a build to another number of rows.

    Graphs grow by n log n. Of an IVF, training is k-means, whose cost is known, and codes, whose
    training sample is fixed; filling is one comparison with each centroid and the coding.

    Args:
        known: A smaller build of the same family.
        spec: What is to be built.
        n_rows: Rows of it.
        assign_s: What `assign_seconds` measured.
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
    """Scale a latency on a sample to all segments, which are searched one after another, in ms."""
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
