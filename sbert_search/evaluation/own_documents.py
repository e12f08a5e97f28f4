"""Queries that are documents of the collection, as in ArguAna and Quora.

Such a query finds itself first. BEIR and MTEB therefore leave out a document with the query's id
(``ignore_identical_ids``). In other collections, queries and documents are numbered independently
of each other, and a document with the number of a query may be relevant to it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from sbert_search.index.index import Index
from sbert_search.records import Qrels, Query, Run
from sbert_search.text.labelled.retrieval import is_own_document

OWN_DOCUMENTS = "queries whose own document is left out"
"""The count in evaluations."""


def own_documents(
    index: Index, queries: Sequence[Query], qrels: Qrels, ignore_identical_ids: bool | None = None
) -> set[str]:
    """Return the ids of the queries whose own document is to be left out of their results.

    Args:
        index: The index that is searched.
        queries: The queries.
        qrels: Their judgements.
        ignore_identical_ids: As in `EvalTask`.
    """
    if ignore_identical_ids is False:
        return set()
    rows = index.state.lookup([query.query_id for query in queries])
    namesakes = [query for query, row in zip(queries, rows.tolist(), strict=True) if row >= 0]
    if ignore_identical_ids:
        return {query.query_id for query in namesakes}
    return {
        query.query_id
        for query in namesakes
        if (document := index.get(query.query_id))
        and is_own_document(query.text, document, qrels[query.query_id])
    }


def without_own(
    run: Run, own: Collection[str], depth: int | None = None
) -> dict[str, dict[str, float]]:
    """Return a run without the own documents of the queries ``own``.

    Args:
        run: The run.
        own: Result of `own_documents`.
        depth: Number of hits of each query to return; None: all.
    """
    return {
        query_id: dict(
            islice(
                (hit for hit in hits.items() if hit[0] != query_id or query_id not in own), depth
            )
        )
        for query_id, hits in run.items()
    }
