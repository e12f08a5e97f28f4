"""Measuring recall and speed of a search against exact neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import Advance
from sbert_search.index.dense.exact import QUERY_BLOCK
from sbert_search.index.dense.faiss_runtime import single_threaded

Floats = NDArray[np.float32]
Search = Callable[[Floats, int], tuple[Floats, NDArray[np.int64]]]

SINGLE = 100  # number of queries searched one by one to measure the latency


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """Queries with the scores of their exact k-th neighbours.

    Attributes:
        queries: float32 (n_queries, dim).
        own: The row whose vector is the query, int64 (n_queries,). It does not count as a neighbour
            of the query. -1 where the query is not the vector of a row.
        kth: Score of the k-th nearest row except ``own``, float32 (n_queries,).
        k: The k of recall@k.
    """

    queries: Floats
    own: NDArray[np.int64]
    kth: Floats
    k: int


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a search on one thread.

    Attributes:
        p50_ms: Median latency of a single query, in milliseconds.
        p99_ms: 99th percentile of the latency of a single query, in milliseconds.
        qps: Queries per second if many queries are searched together.
    """

    p50_ms: float
    p99_ms: float
    qps: float


def find_ground_truth(
    queries: Floats,
    own: NDArray[np.int64],
    k: int,
    exact: Search,
    advance: Advance = lambda n: None,
) -> GroundTruth:
    """Find the score of the exact k-th neighbour of each query.

    If a query has fewer than ``k`` neighbours, the ground truth of all queries has that smaller k.

    Args:
        queries: At least one query, float32 (n_queries, dim).
        own: As in `GroundTruth`.
        k: The k of recall@k.
        exact: The exact search.
        advance: Called with the number of queries of each block after it is searched.
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

    Args:
        scores: Scores of the rows found, (n_queries, k + 1).
        rows: Rows found, best first, (n_queries, k + 1).
        own: As in `GroundTruth`.

    Returns:
        Scores and rows, (n_queries, k).
    """
    is_own = (rows == own[:, None]) & (own[:, None] >= 0)
    order = np.argsort(is_own, axis=1, kind="stable")[:, : rows.shape[1] - 1]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def recall_of(search: Search, truth: GroundTruth) -> tuple[float, float, float]:
    """Measure the recall of a search on one thread.

    A row found counts as correct if its score is at least that of the k-th neighbour. The search is
    asked for k + 1 rows, since the row that is the query does not count.

    Returns:
        Recall@k, its standard error over the queries, and queries per second.
    """
    with single_threaded():
        start = time.perf_counter()
        scores, rows = search(truth.queries, truth.k + 1)
        seconds = time.perf_counter() - start
    scores, rows = without_own(scores, rows, truth.own)
    correct = ((scores >= truth.kth[:, None]) & (rows >= 0)).sum(axis=1)
    recalls = np.minimum(correct / truth.k, 1.0)
    error = float(recalls.std() / np.sqrt(len(recalls)))
    return float(recalls.mean()), error, len(truth.queries) / seconds


def speed_of(search: Search, truth: GroundTruth, qps: float) -> Speed:
    """Measure the latency of queries searched one by one, and return it with a known ``qps``.

    The first 5 queries warm up: their times count only if there are no further queries. The search
    is asked for k rows, as by a user.
    """
    times_ms = []
    with single_threaded():
        for query in truth.queries[: SINGLE + 5]:
            start = time.perf_counter()
            search(query[None], truth.k)
            times_ms.append(1000 * (time.perf_counter() - start))
    p50, p99 = np.percentile(times_ms[5:] or times_ms, [50, 99])
    return Speed(float(p50), float(p99), qps)
