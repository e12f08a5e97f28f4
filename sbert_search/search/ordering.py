"""The stages of a search after retrieval: a ranking of candidates becomes the page to return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sbert_search.index.snapshot import Snapshot
from sbert_search.search.options import SearchOptions
from sbert_search.search.retrieval import Retrieved
from sbert_search.search.stages.boosts import boosted
from sbert_search.search.stages.lexical import best_passages

if TYPE_CHECKING:
    from sbert_search.search.stages.rerank import PairScorer


def ordered(
    snapshot: Snapshot,
    block: Sequence[Retrieved],
    options: SearchOptions,
    reranker: PairScorer | None,
) -> list[Retrieved]:
    """Order the documents found for each query, and keep those of the requested page.

    The stages are: the reranker, boosts, ``min_score``, diversity, groups, and the page. The texts
    of the documents are read only if there is a reranker. With ``group_by``, further documents may
    be needed to fill the groups. They follow all candidates in the order of retrieval, so that the
    order of the documents is the same whichever page is requested.

    Raises:
        QueryError: A boost names a column that is absent or has an unsuitable type, or the reranker
            gives scores that are not finite.
    """
    if reranker is not None:
        block = _reranked(snapshot, block, options, reranker)
    return [_page(snapshot, _reordered(snapshot, found, options), options) for found in block]


def _reranked(
    snapshot: Snapshot,
    block: Sequence[Retrieved],
    options: SearchOptions,
    reranker: PairScorer,
) -> list[Retrieved]:
    from sbert_search.search.stages.rerank import rerank

    rankings = [
        best_passages(snapshot, found.query, found.ranking, found.near, group=options.group)
        for found in block
    ]
    texts = [[passage.text for passage in snapshot.fetch(ranking.rows)] for ranking in rankings]
    queries, weight = [found.query for found in block], options.fusion.rerank_weight
    rankings = rerank(reranker, queries, texts, rankings, weight)
    return [replace(found, ranking=r) for found, r in zip(block, rankings, strict=True)]


def _reordered(snapshot: Snapshot, found: Retrieved, options: SearchOptions) -> Retrieved:
    """Apply boosts, ``min_score`` and diversity."""
    ranking, others = found.ranking, found.others
    if options.boosts:
        ranking = boosted(snapshot, ranking, options.boosts)
    if options.min_score is not None:
        ranking = ranking.take(np.flatnonzero(ranking.scores >= options.min_score))
        if options.rerank_depth or options.boosts:
            others = None  # their scores, of an earlier stage, have another range
        elif others is not None:
            others = others.take(np.flatnonzero(others.scores >= options.min_score))
    if options.diversity:
        from sbert_search.search.stages.diversity import diversified

        ranking = best_passages(snapshot, found.query, ranking, found.near, group=options.group)
        n = len(ranking) if options.group_by else options.offset + options.k
        ranking = diversified(snapshot, ranking, options.diversity, n)
    return replace(found, ranking=ranking, others=others)


def _page(snapshot: Snapshot, found: Retrieved, options: SearchOptions) -> Retrieved:
    """Skip the first ``offset`` documents, or groups with ``group_by``, and keep the next k."""
    ranking, skipped = found.ranking, options.offset
    last = options.offset + options.k
    kept = np.arange(min(last, len(ranking)))
    if options.group_by is not None:
        from sbert_search.search.stages.grouping import groups_of, within_groups

        ranking = ranking if found.others is None else ranking.followed_by(found.others)
        groups = groups_of(snapshot, options.group_by, ranking.docs)
        kept = within_groups(groups, last, options.group_size)
        skipped = len(within_groups(groups, options.offset, options.group_size))
    return replace(found, ranking=ranking.take(kept[skipped:]), n_before=skipped)
