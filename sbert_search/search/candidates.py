"""The candidates of a search: documents or passages, found by vectors, by words or by both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.arrays import distinct
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.lexical.analyzer import NearWords
from sbert_search.index.lexical.bm25 import Matches
from sbert_search.index.norms import equal_as_ones
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.rows import StoredPassage
from sbert_search.search.fusion import (
    Candidates,
    Ranking,
    blocks_of,
    dense_part,
    lexical_part,
    whole_blocks,
)

# If documents have several passages, the first search fetches this many times k rows.
_FIRST_FETCH = 2

_NO_ROWS = np.empty(0, np.int64)
_NOTHING = Ranking(_NO_ROWS, _NO_ROWS, np.empty(0))


def nearest_documents(
    snapshot: Snapshot, queries: NDArray[np.float32], k: int, mask: RowMask | None = None
) -> list[Ranking]:
    """Find the k documents whose best passage, which gives the score, is nearest to each query.

    Documents with equal scores are ordered by row. Fewer than k come back only if fewer match. With
    the metric cosine, a vector of zeros has no direction and finds none.
    """
    n_rows, n_docs = (mask or snapshot).n_rows, (mask or snapshot).n_docs
    if 0 < n_rows == n_docs:
        found = one_row_each(*snapshot.search(queries, min(k, n_rows), mask))
        return _of_directions(snapshot, queries, found)
    rankings = [_NOTHING] * len(queries)
    open_queries, fetch = np.arange(len(queries)), min(k * _FIRST_FETCH, n_rows)
    # More rows are fetched until every query has k distinct documents, or no rows are left.
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
    return _of_directions(snapshot, queries, rankings)


def has_direction(snapshot: Snapshot, vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Tell which vectors (n, dim) can be compared by the metric: by cosine, not those of zeros."""
    found = np.ones(len(vectors), bool)
    return np.any(vectors, axis=1, out=found) if snapshot.settings.metric == "cosine" else found


def _of_directions(
    snapshot: Snapshot, queries: NDArray[np.float32], rankings: list[Ranking]
) -> list[Ranking]:
    directed = has_direction(snapshot, queries).tolist()
    return [ranking if has else _NOTHING for ranking, has in zip(rankings, directed, strict=True)]


def one_row_each(scores: NDArray[np.float32], rows: NDArray[np.int64]) -> list[Ranking]:
    """Make rankings of rows (n_queries, k) that are documents; absent rows, at the end, are -1."""
    wide, ranks = scores.astype(np.float64), np.arange(1, rows.shape[1] + 1)
    counts = np.count_nonzero(rows >= 0, axis=1).tolist()
    return [
        Ranking(r[:n], r[:n], s[:n], {"dense": (ranks[:n], s[:n])})
        for r, s, n in zip(rows, wide, counts, strict=True)
    ]


def _best_row_each(
    docs: NDArray[np.int64], rows: NDArray[np.int64], scores: NDArray[np.float32], k: int
) -> Ranking:
    """Keep the best row of k documents; rows are best first, and absent ones at the end are -1."""
    _, first = np.unique(docs[: np.count_nonzero(rows >= 0)], return_index=True)
    kept = np.sort(first)[:k]
    return Ranking(docs[kept], rows[kept], scores[kept].astype(np.float64)).with_stage("dense")


def matching_documents(
    snapshot: Snapshot,
    queries: Sequence[str],
    k: int,
    mask: RowMask | None = None,
    near: NearWords | None = None,
) -> list[Ranking]:
    """Find the k documents with the best BM25 score for each query; whole documents are scored.

    Words that ``near`` finds for a word of the query match too, with smaller weights. Lexical
    search does not choose a passage: ``rows`` has the row of each document's first passage.
    """
    return list(map(lexical_ranking, snapshot.match(queries, k, mask, near)))


def lexical_ranking(found: Matches) -> Ranking:
    """Make a ranking of what lexical search found."""
    return Ranking(found.docs, found.docs, found.scores).with_stage("lexical")


def best_passages(
    snapshot: Snapshot,
    query: str,
    ranking: Ranking,
    near: NearWords | None = None,
    *,
    group: bool = True,
) -> Ranking:
    """Set the best passage of documents that only lexical search found.

    It is the first of those with the most words of the query, or words that ``near`` finds for
    them. Documents that dense search ranked too keep the passage that is nearest to the query. In a
    search for passages (``group`` is False), the rows are the passages that were found, and stay.
    """
    if not group or snapshot.n_rows == snapshot.n_docs:
        return ranking
    unknown = np.zeros(len(ranking), np.int64), np.zeros(len(ranking))
    dense, _ = ranking.stages.get("dense", unknown)
    words, _ = ranking.stages.get("lexical", unknown)
    positions = np.flatnonzero((dense <= 0) & (words != 0))
    found = snapshot.rows_of(ranking.docs[positions])
    if len(found) == len(positions):  # each document has one passage
        return ranking
    rows = ranking.rows.copy()
    passages: dict[int, list[StoredPassage]] = defaultdict(list)
    for passage in snapshot.fetch(found):
        passages[passage.doc_row].append(passage)
    matched_words = snapshot.lexical.reader.matched_words
    for i, doc in zip(positions.tolist(), ranking.docs[positions].tolist(), strict=True):
        counts = [len(matched_words(query, passage.text, near)) for passage in passages[doc]]
        rows[i] = passages[doc][int(np.argmax(counts))].row
    return Ranking(ranking.docs, rows, ranking.scores, ranking.stages)


_DOCS_AT_ONCE = 16  # documents whose texts are in memory while their passages are scored


def nearest_passages(
    snapshot: Snapshot, queries: NDArray[np.float32], k: int, mask: RowMask | None = None
) -> list[Ranking]:
    """Find the k passages nearest to each query; their rows are ``docs`` as well as ``rows``."""
    k = min(k, (mask or snapshot).n_rows)
    if not k:
        return [_NOTHING] * len(queries)
    return _of_directions(snapshot, queries, one_row_each(*snapshot.search(queries, k, mask)))


def matching_passages(
    snapshot: Snapshot,
    queries: Sequence[str],
    k: int,
    depth: int,
    mask: RowMask | None = None,
    near: NearWords | None = None,
    also: Sequence[NDArray[np.int64]] | None = None,
    *,
    found: Sequence[Ranking] | None = None,
) -> list[Matches]:
    """Find k passages with the best BM25 scores for each query, among those of the best documents.

    A passage is scored like a document that consists only of it; the document frequencies and the
    average length are those of the index. So a document of one passage has the same score as in a
    search for documents. A passage without a word of the query is left out. But if a document has
    the score 0, no word of the query was needed to find it, and all its passages are kept. The
    passages of the ``depth`` best documents come first, then those of the next block of documents
    (`fusion.blocks_of`), and so on, each block by its scores.

    ``also`` has rows of passages to score too. ``found`` has `whole_blocks` of documents for each
    query; None: they are searched. ``docs`` of the result are the rows of the passages.
    """
    if found is None:
        found = matching_documents(snapshot, queries, whole_blocks(k, depth), mask, near)
    several = zip(queries, found, also or [_NO_ROWS] * len(queries), strict=True)
    return [_of_documents(snapshot, *each, k, depth, near) for each in several]


def _of_documents(
    snapshot: Snapshot,
    query: str,
    found: Ranking,
    also: NDArray[np.int64],
    k: int,
    depth: int,
    near: NearWords | None,
) -> Matches:
    rows, scores, blocks = [_NO_ROWS], [np.empty(0)], [_NO_ROWS]
    of_documents = blocks_of(np.arange(1, len(found) + 1), depth)
    block_of = dict(zip(found.docs.tolist(), of_documents.tolist(), strict=True))
    wordless = set(found.docs[found.scores == 0].tolist())
    for docs in _slices(found.docs):
        passages = snapshot.fetch(snapshot.rows_of(docs))
        some = snapshot.lexical.scores_of(query, map(fields_of, passages), near)
        kept = (some > 0) | [passage.doc_row in wordless for passage in passages]
        rows.append(np.array([passage.row for passage in passages])[kept])
        scores.append(some[kept])
        blocks.append(np.array([block_of[passage.doc_row] for passage in passages])[kept])
    row, score = np.concatenate(rows), np.concatenate(scores)
    order = np.lexsort((row, -score, np.concatenate(blocks)))[:k]
    others = [
        snapshot.lexical.scores_of(query, map(fields_of, snapshot.fetch(some)), near)
        for some in _slices(also)
    ]
    most = snapshot.lexical.weights(query, near).most
    return Matches(row[order], score[order], np.concatenate([np.empty(0), *others]), most)


def _slices(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (rows[start : start + _DOCS_AT_ONCE] for start in range(0, len(rows), _DOCS_AT_ONCE))


def fields_of(passage: StoredPassage) -> tuple[str, str]:
    """Split a passage into its part of the title and its part of the text."""
    title, text = passage.document.title, passage.document.text
    start, end = passage.char_start, passage.char_end
    offset = len(title) + 1 if title else 0
    return title[start:end], text[max(start - offset, 0) : max(end - offset, 0)]


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

    With a ``depth``, that of `Fusion`, passages are searched, and ``docs`` are their rows.
    """
    nearest = nearest_documents if depth is None else nearest_passages
    dense = nearest(snapshot, vectors, n, mask)
    also = [ranking.docs for ranking in dense]
    if depth is None:
        words = snapshot.match(queries, n, mask, near, also)
    else:
        words = matching_passages(snapshot, queries, n, depth, mask, near, also)
    for vector, ranking, matches in zip(vectors, dense, words, strict=True):
        yield _joined(snapshot, vector[None], ranking, matches, passages=depth is not None)


def dense_parts(
    snapshot: Snapshot,
    vector: NDArray[np.float32],
    rows: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the dense parts (n,) of the fused scores of rows whose scores by the metric are known.

    A row whose vector is equal to that of the query, (1, dim), has 1, though the cosine of the two
    may be rounded. A vector of zeros has the cosine 0, and as the query's gives the part 0.
    """
    settings = snapshot.settings
    if not has_direction(snapshot, vector).all():
        return np.zeros(len(rows))
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
    lexical: Matches,
    *,
    passages: bool,
) -> Candidates:
    docs = distinct(np.concatenate([dense.docs, lexical.docs]))
    rows, scores, words = docs.copy(), np.zeros(len(docs)), np.zeros(len(docs))
    dense_ranks, lexical_ranks = np.zeros(len(docs), np.int64), np.zeros(len(docs), np.int64)
    at = np.searchsorted(docs, dense.docs)
    rows[at], scores[at], words[at] = dense.rows, dense.scores, lexical.also
    dense_ranks[at] = np.arange(1, len(dense) + 1)
    at = np.searchsorted(docs, lexical.docs)
    words[at], lexical_ranks[at] = lexical.scores, np.arange(1, len(lexical.docs) + 1)
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
        lexical_part(words, lexical.most),
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
