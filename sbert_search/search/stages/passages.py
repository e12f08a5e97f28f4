"""Search for passages instead of documents: several hits may come from one document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.lexical.analyzer import NearWords
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.rows import StoredPassage
from sbert_search.search.ranking import Ranking
from sbert_search.search.stages.dense import one_row_each
from sbert_search.search.stages.fusion import blocks_of, whole_blocks
from sbert_search.search.stages.lexical import Matched, matching_documents

_NO_ROWS = np.empty(0, np.int64)
_DOCS_AT_ONCE = 16  # documents whose texts are in memory while their passages are scored


def nearest_passages(
    snapshot: Snapshot, queries: NDArray[np.float32], k: int, mask: RowMask | None = None
) -> list[Ranking]:
    """Find the k passages nearest to each query; arguments as for `dense.nearest_documents`.

    In the rankings, ``docs`` and ``rows`` are the same: the rows of the passages.
    """
    k = min(k, (mask or snapshot).n_rows)
    if k == 0:
        return [Ranking(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))] * len(queries)
    return one_row_each(*snapshot.search(queries, k, mask))


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
) -> list[Matched]:
    """Find k passages with the best BM25 scores for each query, among those of the best documents.

    A passage is scored like a document that consists only of this passage; the document frequencies
    and the average length are those of the index. So a document of one passage has the same score
    as in a search for documents. A passage that contains no word of the query is left out. But if a
    document has the score 0, no word of the query was needed to find it, and all its passages are
    kept. The passages of the ``depth`` best documents come first, then those of the next block of
    documents (`fusion.blocks_of`), and so on, each block by its scores.

    Args:
        snapshot: State of the index to search.
        queries: The queries.
        k: Number of passages to find for each query.
        depth: `Fusion.depth`.
        mask: The rows that a filter admits; None: all live rows.
        near: Finds further words of the index that match a word of the query; None: only the words
            of the query match.
        also: For each query, rows of passages that are scored too.
        found: The documents of each query, `whole_blocks` of them; None: they are searched.

    Returns:
        Rankings with the rows of the passages as ``docs`` and as ``rows``.
    """
    if found is None:
        matched = matching_documents(snapshot, queries, whole_blocks(k, depth), mask, near)
        found = [each.ranking for each in matched]
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
) -> Matched:
    rows, scores, blocks = [_NO_ROWS], [np.empty(0)], [_NO_ROWS]
    of_documents = blocks_of(np.arange(1, len(found) + 1), depth)
    block_of = dict(zip(found.docs.tolist(), of_documents.tolist(), strict=True))
    wordless = set(found.docs[found.scores == 0].tolist())
    for docs in _slices(found.docs):
        passages = snapshot.fetch(snapshot.rows_of(docs))
        some = snapshot.lexical.scores_of(query, map(_fields, passages), near)
        kept = (some > 0) | [passage.doc_row in wordless for passage in passages]
        rows.append(np.array([passage.row for passage in passages])[kept])
        scores.append(some[kept])
        blocks.append(np.array([block_of[passage.doc_row] for passage in passages])[kept])
    row, score = np.concatenate(rows), np.concatenate(scores)
    order = np.lexsort((row, -score, np.concatenate(blocks)))[:k]
    ranking = Ranking(row[order], row[order], score[order]).with_stage("lexical")
    others = [
        snapshot.lexical.scores_of(query, map(_fields, snapshot.fetch(some)), near)
        for some in _slices(also)
    ]
    most = snapshot.lexical.weights(query, near).most
    return Matched(ranking, np.concatenate([np.empty(0), *others]), most)


def _slices(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (rows[start : start + _DOCS_AT_ONCE] for start in range(0, len(rows), _DOCS_AT_ONCE))


def with_documents(snapshot: Snapshot, rankings: list[Ranking]) -> Iterator[Ranking]:
    """Set ``docs`` of rankings of passages to the documents of the passages."""
    return (replace(ranking, docs=snapshot.doc_of(ranking.rows)) for ranking in rankings)


def _fields(passage: StoredPassage) -> tuple[str, str]:
    """Split a passage into its part of the title and its part of the text."""
    title, text = passage.document.title, passage.document.text
    start, end = passage.char_start, passage.char_end
    offset = len(title) + 1 if title else 0
    return title[start:end], text[max(start - offset, 0) : max(end - offset, 0)]
