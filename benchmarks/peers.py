"""hnswlib and usearch behind one interface, and the search width that reaches a recall."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
"""Row numbers of the vectors found in an index, (queries, k)."""

# Search widths (ef) that `widen` tries first.
WIDTHS = [10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024]


class Graph(Protocol):
    """A graph index whose search width can be set."""

    def set_width(self, width: int) -> None:
        """Set the search width: the number of candidates that a search keeps (ef)."""

    def search(self, queries: Floats, k: int) -> Rows:
        """Return the positions of the k nearest vectors of each query, (queries, k)."""


class HnswLib:
    """hnswlib over the inner product, searched by one thread."""

    def __init__(self, vectors: Floats, links: int, construction: int, threads: int) -> None:
        import hnswlib

        self._index: Any = hnswlib.Index(space="ip", dim=vectors.shape[1])
        self._index.init_index(len(vectors), ef_construction=construction, M=links)
        self._index.add_items(vectors, num_threads=threads)

    def set_width(self, width: int) -> None:
        """Set the search width."""
        self._index.set_ef(width)

    def search(self, queries: Floats, k: int) -> Rows:
        """Return the positions of the k nearest vectors of each query."""
        labels: Rows = self._index.knn_query(queries, k, num_threads=1)[0].astype(np.int64)
        return labels


class USearch:
    """usearch over the inner product, searched by one thread."""

    def __init__(self, vectors: Floats, links: int, construction: int, threads: int) -> None:
        from usearch.index import Index

        self._index: Any = Index(
            ndim=vectors.shape[1],
            metric="ip",
            dtype="f32",
            connectivity=links,
            expansion_add=construction,
        )
        self._index.add(np.arange(len(vectors)), vectors, threads=threads)

    def set_width(self, width: int) -> None:
        """Set the search width."""
        self._index.expansion_search = width

    def search(self, queries: Floats, k: int) -> Rows:
        """Return the positions of the k nearest vectors of each query."""
        found = self._index.search(queries, k, threads=1)
        labels: Rows = np.asarray(found.keys).reshape(len(queries), -1).astype(np.int64)
        return labels


def recall(rows: Rows, truth: Rows) -> float:
    """Return the share of true neighbours among the returned rows, both (n_queries, k)."""
    hits = [len(set(a) & set(b)) for a, b in zip(rows.tolist(), truth.tolist(), strict=True)]
    return float(sum(hits)) / truth.size


def widen(
    set_width: Callable[[int], object],
    search: Callable[[Floats, int], Rows],
    queries: Floats,
    truth: Rows,
    wanted: float,
) -> float:
    """Set the smallest search width with at least the wanted recall, and return the recall found.

    If no width up to the largest of `WIDTHS` reaches it, the largest is set.
    """

    def recall_at(width: int) -> float:
        set_width(width)
        return recall(search(queries, truth.shape[1]), truth)

    low, high = 0, WIDTHS[-1]
    for width in WIDTHS:
        if recall_at(width) >= wanted:
            high = width
            break
        low = width
    while high - low > 1 and low >= WIDTHS[0]:
        middle = (low + high) // 2
        low, high = (low, middle) if recall_at(middle) >= wanted else (middle, high)
    return recall_at(high)
