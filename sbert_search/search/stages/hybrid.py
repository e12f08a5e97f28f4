"""The candidates of hybrid search: what dense or lexical search found, with both scores of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.arrays import distinct
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.lexical.analyzer import NearWords
from sbert_search.index.norms import equal_as_ones
from sbert_search.index.snapshot import Snapshot
from sbert_search.search.ranking import Ranking
from sbert_search.search.stages.dense import nearest_documents
from sbert_search.search.stages.fusion import Candidates, dense_part, lexical_part
from sbert_search.search.stages.lexical import Matched, matching_documents
from sbert_search.search.stages.passages import matching_passages, nearest_passages


def candidates_of(
    snapshot: Snapshot,
    queries: Sequence[str],
    vectors: NDArray[np.float32],
    n: int,
    mask: RowMask | None = None,
    near: NearWords | None = None,
    *,
    depth: int | None = None,
) -> Iterator[Candidates]:
    """Find the n best documents of each stage for each query, and both scores of each of them.

    Args:
        snapshot: State of the index to search.
        queries: The queries.
        vectors: Their vectors, float32 (n_queries, dim).
        n: Number of documents of each stage.
        mask: The rows that a filter admits; None: all live rows.
        near: Finds words of the index that are spelt like a word of the query; None: the search is
            not fuzzy.
        depth: If passages are searched, `Fusion.depth`; ``docs`` of the candidates are then rows of
            passages. None: documents are searched.
    """
    if depth is None:
        dense = nearest_documents(snapshot, vectors, n, mask)
        also = [ranking.docs for ranking in dense]
        words = matching_documents(snapshot, queries, n, mask, near, also)
    else:
        dense = nearest_passages(snapshot, vectors, n, mask)
        also = [ranking.docs for ranking in dense]
        words = matching_passages(snapshot, queries, n, depth, mask, near, also)
    for vector, nearest, matched in zip(vectors, dense, words, strict=True):
        yield _joined(snapshot, vector[None], nearest, matched, passages=depth is not None)


def dense_parts(
    snapshot: Snapshot,
    vector: NDArray[np.float32],
    rows: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the dense parts (n,) of the fused scores of rows whose scores by the metric are known.

    A row whose vector is equal to that of the query, (1, dim), has 1, though the cosine of the two
    may be rounded. A vector of zeros has the cosine 0.
    """
    settings = snapshot.settings
    if settings.metric == "cosine":
        cosines = equal_as_ones(scores, settings.dtype)
    else:
        cosines = equal_as_ones(_cosines(snapshot, vector, rows), settings.dtype)
    return dense_part(cosines, settings.unrelated_cosine)


def _cosines(
    snapshot: Snapshot, vector: NDArray[np.float32], rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    vectors = snapshot.vectors(rows).astype(np.float64)
    query = vector[0].astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = np.zeros(len(rows))
    # Not a matrix product, whose rounding may depend on the number of rows.
    np.divide((vectors * query).sum(axis=1), norms, out=cosines, where=norms > 0)
    return cosines


def _joined(
    snapshot: Snapshot,
    vector: NDArray[np.float32],
    dense: Ranking,
    matched: Matched,
    *,
    passages: bool,
) -> Candidates:
    lexical = matched.ranking
    docs = distinct(np.concatenate([dense.docs, lexical.docs]))
    rows, scores, words = docs.copy(), np.zeros(len(docs)), np.zeros(len(docs))
    dense_ranks, lexical_ranks = np.zeros(len(docs), np.int64), np.zeros(len(docs), np.int64)
    at = np.searchsorted(docs, dense.docs)
    rows[at], scores[at], words[at] = dense.rows, dense.scores, matched.also
    dense_ranks[at] = np.arange(1, len(dense) + 1)
    at = np.searchsorted(docs, lexical.docs)
    words[at], lexical_ranks[at] = lexical.scores, np.arange(1, len(lexical) + 1)
    rest = np.flatnonzero(dense_ranks == 0)
    if passages or snapshot.n_rows == snapshot.n_docs:
        scores[rest] = snapshot.scores_of(vector, rows[rest])
    else:
        # A FAISS file may miss the best passage of a document that it finds by another one.
        rest = np.arange(len(docs)) if any(ann is not None for ann in snapshot.anns) else rest
        rows[rest], scores[rest] = _best_rows(snapshot, vector, docs[rest])
    return Candidates(
        docs,
        rows,
        dense_ranks,
        scores,
        dense_parts(snapshot, vector, rows, scores),
        lexical_ranks,
        words,
        lexical_part(words, matched.most),
    )


def _best_rows(
    snapshot: Snapshot, vector: NDArray[np.float32], docs: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the best passage of each document (ascending), and its score."""
    rows = snapshot.rows_of(docs)
    scores = snapshot.scores_of(vector, rows)
    if len(rows) == len(docs):  # each document has one passage
        return rows, scores
    owners = snapshot.doc_of(rows)
    order = np.lexsort((rows, -scores, owners))
    _, first = np.unique(owners[order], return_index=True)
    return rows[order[first]], scores[order[first]]
