"""Search for passages instead of documents: several hits may come from one document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.lexical.analyzer import NearWords
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.passages import StoredPassage
from sbert_search.search.ranking import Ranking
from sbert_search.search.stages.dense import one_row_each

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
    snapshot: Snapshot, query: str, found: Ranking, k: int, near: NearWords | None = None
) -> Ranking:
    """Find the k passages with the best BM25 scores among the passages of given documents.

    A passage is scored like a document that consists only of this passage; the document frequencies
    and the average length are those of the index. So a document of one passage has the same score
    as in a search for documents. A passage that contains no word of the query is left out. But if a
    document has the score 0, no word of the query was needed to find it, and all its passages are
    kept.

    Args:
        snapshot: State of the index to search.
        query: The query.
        found: Documents found for the query, best first.
        k: Number of passages to find.
        near: Finds further words of the index that match a word of the query; None: only the words
            of the query match.

    Returns:
        A ranking with the rows of the passages as ``docs`` and as ``rows``.
    """
    rows, scores = [np.empty(0, np.int64)], [np.empty(0)]
    for start in range(0, len(found), _DOCS_AT_ONCE):
        docs = found.docs[start : start + _DOCS_AT_ONCE]
        passages = snapshot.fetch(snapshot.rows_of(docs))
        some = snapshot.lexical.scores_of(query, map(_fields, passages), near)
        wordless = set(docs[found.scores[start : start + _DOCS_AT_ONCE] == 0].tolist())
        kept = (some > 0) | [passage.doc_row in wordless for passage in passages]
        rows.append(np.array([passage.row for passage in passages])[kept])
        scores.append(some[kept])
    row, score = np.concatenate(rows), np.concatenate(scores)
    order = np.lexsort((row, -score))[:k]
    return Ranking(row[order], row[order], score[order]).with_stage("lexical")


def with_documents(snapshot: Snapshot, rankings: list[Ranking]) -> Iterator[Ranking]:
    """Set ``docs`` of rankings of passages to the documents of the passages."""
    return (replace(ranking, docs=snapshot.doc_of(ranking.rows)) for ranking in rankings)


def _fields(passage: StoredPassage) -> tuple[str, str]:
    """Split a passage into its part of the title and its part of the text."""
    title, text = passage.document.title, passage.document.text
    start, end = passage.char_start, passage.char_end
    offset = len(title) + 1 if title else 0
    return title[start:end], text[max(start - offset, 0) : max(end - offset, 0)]
