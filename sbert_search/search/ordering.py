"""The stages of a search after retrieval: a ranking of candidates becomes the page to return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.norms import least_score
from sbert_search.index.snapshot import Snapshot
from sbert_search.search.options import SearchOptions
from sbert_search.search.ranking import Ranking
from sbert_search.search.retrieval import Retrieved
from sbert_search.search.stages.boosts import boosted
from sbert_search.search.stages.fusion import lexical_part
from sbert_search.search.stages.hybrid import dense_parts
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

    The stages are: the reranker, boosts, ``min_score``, diversity, groups, and the page. The first
    four order the candidates, which are the same whichever page is requested. The other documents
    follow the candidates in the order of retrieval. The texts of the documents are read only if
    there is a reranker.

    Raises:
        QueryError: A boost names a column that is absent or has an unsuitable type, the reranker
            gives scores that are not finite, or the range of its scores is needed and unknown.
    """
    if reranker is not None:
        block = _reranked(snapshot, block, options, reranker)
    reordered = (_reordered(snapshot, found, options, reranker) for found in block)
    return [_page(snapshot, found, options) for found in reordered]


def _on_scale(snapshot: Snapshot, found: Retrieved, options: SearchOptions) -> Ranking:
    """Return the ranking of retrieval with scores on the scale of a fused score, 1 for the best.

    In dense search, this is the dense part alone; in lexical search, the lexical part alone.
    Reciprocal ranks are divided by the score of a document that is the first of both stages.
    """
    ranking, scores = found.ranking, found.ranking.scores
    if options.mode == "lexical":
        scores = lexical_part(scores, snapshot.lexical.weights(found.query, found.near).most)
    elif options.mode == "dense":
        assert found.vector is not None
        scores = dense_parts(snapshot, found.vector[None], ranking.rows, scores)
    elif options.fusion.method == "rrf":
        scores = scores * (options.fusion.rrf_k + 1)
    return replace(ranking, scores=scores)


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
    if options.fusion.rerank_weight < 1:
        on_scale = [replace(f, ranking=r) for f, r in zip(block, rankings, strict=True)]
        rankings = [_on_scale(snapshot, found, options) for found in on_scale]
    queries, adds = [found.query for found in block], bool(options.boosts)
    rankings = rerank(reranker, queries, texts, rankings, options.fusion, on_scale=adds)
    return [replace(found, ranking=r) for found, r in zip(block, rankings, strict=True)]


def _reordered(
    snapshot: Snapshot, found: Retrieved, options: SearchOptions, reranker: PairScorer | None
) -> Retrieved:
    """Apply boosts, ``min_score`` and diversity, and append the documents behind the candidates."""
    ranking, others = found.ranking, found.others
    if options.boosts:
        ranking = ranking if reranker is not None else _on_scale(snapshot, found, options)
        ranking = boosted(snapshot, ranking, options.boosts)
    if (least := options.min_score) is not None:
        of_retrieval = options.least is not None
        if options.mode == "dense" and of_retrieval:
            settings = snapshot.settings
            least = least_score(least, settings.metric, settings.dtype)
        ranking = ranking.above(least)
        if others is not None:
            # After a reranker or boosts, the scores of the others have another range.
            others = others.above(least) if of_retrieval else None
    found = replace(found, ranking=ranking)
    if options.diversity:
        from sbert_search.search.stages.diversity import diversified

        relevance = _relevance(snapshot, found, options, reranker)
        ranking = best_passages(snapshot, found.query, ranking, found.near, group=options.group)
        n = len(ranking) if options.group_by else options.offset + options.k
        ranking = diversified(snapshot, ranking, relevance, options.diversity, n)
    if others is not None:
        ranking = ranking.followed_by(others)
    return replace(found, ranking=ranking, others=None)


def _relevance(
    snapshot: Snapshot, found: Retrieved, options: SearchOptions, reranker: PairScorer | None
) -> NDArray[np.float64]:
    """Return the scores of the candidates on the scale of a fused score, as far as it is known."""
    if options.boosts or (reranker is not None and options.fusion.rerank_weight < 1):
        return found.ranking.scores
    if reranker is None:
        return _on_scale(snapshot, found, options).scores
    from sbert_search.search.stages.rerank import scale_of

    scale = scale_of(reranker, options.fusion)
    return found.ranking.scores if scale is None else scale(found.ranking.scores)


def _page(snapshot: Snapshot, found: Retrieved, options: SearchOptions) -> Retrieved:
    """Skip the first ``offset`` documents, or groups with ``group_by``, and keep the next k."""
    ranking, skipped = found.ranking, options.offset
    last = options.offset + options.k
    kept = np.arange(min(last, len(ranking)))
    if options.group_by is not None:
        from sbert_search.search.stages.grouping import groups_of, within_groups

        groups = groups_of(snapshot, options.group_by, ranking.docs)
        kept = within_groups(groups, last, options.group_size)
        skipped = len(within_groups(groups, options.offset, options.group_size))
    return replace(found, ranking=ranking.take(kept[skipped:]), n_before=skipped)
