"""The stages of a search after retrieval: a ranking of candidates becomes the page to return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sbert_search.index.snapshot import Snapshot
from sbert_search.search.lexical import best_passages
from sbert_search.search.options import SearchOptions
from sbert_search.search.ranking import Ranking
from sbert_search.search.rerank import PairScorer, rerank
from sbert_search.search.retrieval import Retrieved


def ordered(
    snapshot: Snapshot,
    block: Sequence[Retrieved],
    options: SearchOptions,
    reranker: PairScorer | None,
) -> list[Retrieved]:
    """Order the documents found for each query, and keep those of the requested page.

    The texts of the documents are read only if there is a reranker.
    """
    if reranker is not None:
        block = _reranked(snapshot, block, options, reranker)
    return [
        replace(found, ranking=_page(found.ranking, options), n_before=options.offset)
        for found in block
    ]


def _reranked(
    snapshot: Snapshot,
    block: Sequence[Retrieved],
    options: SearchOptions,
    reranker: PairScorer,
) -> list[Retrieved]:
    rankings = [best_passages(snapshot, found.query, found.ranking) for found in block]
    texts = [[passage.text for passage in snapshot.fetch(ranking.rows)] for ranking in rankings]
    queries, weight = [found.query for found in block], options.fusion.rerank_weight
    rankings = rerank(reranker, queries, texts, rankings, weight)
    return [replace(found, ranking=r) for found, r in zip(block, rankings, strict=True)]


def _page(ranking: Ranking, options: SearchOptions) -> Ranking:
    """Drop documents below ``min_score``, skip the first ``offset``, and keep the next k."""
    if options.min_score is not None:
        ranking = ranking.take(np.flatnonzero(ranking.scores >= options.min_score))
    return ranking.take(np.arange(len(ranking))[options.offset : options.offset + options.k])
