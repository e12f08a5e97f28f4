"""Measuring recall and speed of a search, and predicting the times of larger ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import Advance
from sbert_search.index.dense.exact import QUERY_BLOCK
from sbert_search.index.dense.faiss_build import ROWS_PER_LIST
from sbert_search.index.dense.faiss_runtime import import_faiss, single_threaded
from sbert_search.index.settings import IndexSpec

Floats = NDArray[np.float32]
Search = Callable[[Floats, int], tuple[Floats, NDArray[np.int64]]]

SINGLE = 100  # number of queries searched one by one to measure the latency


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """Queries with the scores of their exact k-th neighbours.

    ``own`` is the row whose vector is the query, which does not count as its neighbour; -1 where
    the query is not the vector of a row.
    """

    queries: Floats  # (n_queries, dim)
    own: NDArray[np.int64]  # (n_queries,)
    kth: Floats  # score of the k-th nearest row except own, (n_queries,)
    k: int  # the k of recall@k


def find_ground_truth(
    queries: Floats,
    own: NDArray[np.int64],
    k: int,
    exact: Search,
    advance: Advance = lambda n: None,
) -> GroundTruth:
    """Find the score of the exact k-th neighbour of each of at least one query.

    If a query has fewer than ``k`` neighbours, the ground truth of all queries has that smaller k.
    """
    parts = []
    for start in range(0, len(queries), QUERY_BLOCK):
        parts.append(exact(queries[start : start + QUERY_BLOCK], k + 1))
        advance(len(parts[-1][0]))
    all_scores, all_rows = (np.concatenate(part) for part in zip(*parts, strict=True))
    scores, rows = without_own(all_scores, all_rows, own)
    k = max(1, min(k, int((rows[:, :k] >= 0).sum(axis=1).min(initial=k))))
    return GroundTruth(queries, own, scores[:, k - 1], k)


def without_own(
    scores: Floats, rows: NDArray[np.int64], own: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.int64]]:
    """Drop one of the k + 1 rows found for each query: the row that is the query, else the last.

    Scores and rows, best first, are (n_queries, k + 1), and those returned (n_queries, k).
    """
    is_own = (rows == own[:, None]) & (own[:, None] >= 0)
    order = np.argsort(is_own, axis=1, kind="stable")[:, : rows.shape[1] - 1]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def recall_of(search: Search, truth: GroundTruth) -> tuple[float, float, float]:
    """Measure on one thread: recall@k, its standard error over the queries, and queries per second.

    A row counts as correct if its score is at least that of the k-th neighbour. The search is asked
    for k + 1 rows, since the row that is the query does not count. Processor time is measured, so
    that the choice is the same while other programs run.
    """
    with single_threaded():
        start = time.process_time()
        scores, rows = search(truth.queries, truth.k + 1)
        seconds = time.process_time() - start
    scores, rows = without_own(scores, rows, truth.own)
    correct = ((scores >= truth.kth[:, None]) & (rows >= 0)).sum(axis=1)
    recalls = np.minimum(correct / truth.k, 1.0)
    error = float(recalls.std() / np.sqrt(len(recalls)))
    return float(recalls.mean()), error, len(truth.queries) / seconds


def latencies_ms(search: Search, truth: GroundTruth) -> tuple[float, float]:
    """Measure median and 99th percentile of the processor time of a query on one thread, in ms.

    The first 5 queries warm up: their times count only if there are no further queries. The search
    is asked for k rows, as by a user.
    """
    times_ms = []
    with single_threaded():
        for query in truth.queries[: SINGLE + 5]:
            start = time.process_time()
            search(query[None], truth.k)
            times_ms.append(1000 * (time.process_time() - start))
    p50, p99 = np.percentile(times_ms[5:] or times_ms, [50, 99])
    return float(p50), float(p99)


_ROUNDS = 10  # iterations of FAISS's k-means


@dataclass(frozen=True, slots=True)
class BuildTime:
    """The measured or predicted seconds of one build."""

    spec: IndexSpec
    n_rows: int
    train_s: float  # centroids and codes
    add_s: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole build."""
        return self.train_s + self.add_s


def assign_seconds(vectors: NDArray[np.float32]) -> float:
    """Measure the seconds that this machine needs to compare one vector with one centroid."""
    faiss = import_faiss()
    rows, lists = vectors[:4096], vectors[:512]
    faiss.knn(rows[:512], lists, 1)  # warm-up
    start = time.perf_counter()
    faiss.knn(rows, lists, 1)
    return (time.perf_counter() - start) / (len(rows) * len(lists))


def predict(known: BuildTime, spec: IndexSpec, n_rows: int, assign_s: float) -> BuildTime:
    """Predict the time of a build from a measured one of the same kind with other rows.

    An HNSW graph of n rows takes time in proportion to n log n. The training of an IVF is k-means,
    whose time follows from ``assign_s`` (of `assign_seconds`), and that of the codes, which does
    not depend on the rows. To add a row, FAISS compares it with each centroid and encodes it.
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

    It grows with log n of a segment's rows for HNSW, with n for an exact scan, and for IVF with a
    fixed nprobe with the square root of n, as do the number of lists and the length of a list (see
    `settings.lists_for`).
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
