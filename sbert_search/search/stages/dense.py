"""Dense search over passages: the k documents nearest to a query."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.snapshot import Snapshot
from sbert_search.search.ranking import Ranking

# If documents have several passages, the first search fetches this many times k rows.
_FIRST_FETCH = 2


def nearest_documents(
    snapshot: Snapshot, queries: NDArray[np.float32], k: int, mask: RowMask | None = None
) -> list[Ranking]:
    """Find the k documents whose best passage is nearest to each query.

    A row is a passage in the index. The score of a document is the score of its best passage.
    Documents with equal scores are ordered by row. If documents have several passages, more rows
    are fetched until every query has k distinct documents, or no rows are left for the query.

    Args:
        snapshot: State of the index to search.
        queries: Float32 (n_queries, dim), finite.
        k: Documents for each query, at least 1; fewer come back only when fewer match.
        mask: The rows that a filter admits; None: all rows.
    """
    n_rows, n_docs = (mask or snapshot).n_rows, (mask or snapshot).n_docs
    empty = Ranking(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    rankings = [empty for _ in queries]
    open_queries = np.arange(len(queries))
    if 0 < n_rows == n_docs:
        return one_row_each(*snapshot.search(queries, min(k, n_rows), mask))
    fetch = min(k * _FIRST_FETCH, n_rows)
    while len(open_queries) and fetch:
        scores, rows = snapshot.search(queries[open_queries], fetch, mask)
        docs = snapshot.doc_of(rows)
        for i, query in enumerate(open_queries.tolist()):
            rankings[query] = _best_row_each(docs[i], rows[i], scores[i], k)
        complete = np.array([len(rankings[query]) == k for query in open_queries.tolist()])
        if fetch == n_rows:
            break
        open_queries = open_queries[~complete & (rows[:, -1] >= 0)]
        fetch = min(fetch * 4, n_rows)
    return rankings


def one_row_each(scores: NDArray[np.float32], rows: NDArray[np.int64]) -> list[Ranking]:
    """Make rankings of rows, each of which is a document of its own.

    Args:
        scores: Score of each row, (n_queries, k).
        rows: Rows found, best first, (n_queries, k). If only m < k rows match, the last k - m
            entries are -1.
    """
    wide, ranks = scores.astype(np.float64), np.arange(1, rows.shape[1] + 1)
    counts = np.count_nonzero(rows >= 0, axis=1).tolist()
    return [
        Ranking(r[:n], r[:n], s[:n], {"dense": (ranks[:n], s[:n])})
        for r, s, n in zip(rows, wide, counts, strict=True)
    ]


def _best_row_each(
    docs: NDArray[np.int64], rows: NDArray[np.int64], scores: NDArray[np.float32], k: int
) -> Ranking:
    """Keep the best row of each document: the first of its rows, since rows are sorted by score.

    Args:
        docs: For each row, the document that it belongs to, given as the row of the document's
            first passage, (n_fetched,).
        rows: Rows found, best first, (n_fetched,). If only m rows match, the entries after the
            first m are -1.
        scores: Score of each row, (n_fetched,).
        k: Number of documents to keep.
    """
    _, first = np.unique(docs[: np.count_nonzero(rows >= 0)], return_index=True)
    kept = np.sort(first)[:k]
    return Ranking(docs[kept], rows[kept], scores[kept].astype(np.float64)).with_stage("dense")
