"""Fusing the rankings of dense and lexical search, and mixing in a reranker's scores.

Sources: reciprocal rank fusion: Cormack, Clarke & Büttcher 2009 (SIGIR), k = 60. Weighted sum of
min-max normalised scores: Bruch, Gai & Ingber 2023, An Analysis of Fusion Functions for Hybrid
Retrieval, section 4 (arXiv:2210.11934).
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import QueryError
from sbert_search.runtime.arrays import distinct
from sbert_search.search.ranking import Ranking

Method = Literal["weighted", "rrf"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fusion:
    """Settings of the fusion of two rankings into one; the defaults need no tuning.

    Attributes:
        method: ``weighted``: weighted sum of scores, which are min-max scaled per query and stage
            (1 for the best document, 0 for the last document within ``depth``); ``rrf``: weighted
            sum of ``1 / (rrf_k + rank)``. A stage is dense or lexical search. A stage adds 0 to the
            sum of a document that it did not find within ``depth``.
        dense_weight: Weight of the dense stage, from 0 to 1; the weight of the lexical stage is
            ``1 - dense_weight``.
        depth: Number of best documents of each stage that count, however many hits are requested.
        rrf_k: The constant k of reciprocal rank fusion; a larger k weighs ranks more evenly.
        rerank_weight: Weight of the reranker's score in the final order, from 0 to 1; the weight
            of the score before reranking is ``1 - rerank_weight``. If the weight is below 1, both
            scores are scaled to 0..1 over the reranked documents.

    Raises:
        QueryError: The method is unknown, a weight is not from 0 to 1, or ``depth`` or ``rrf_k`` is
            no integer of at least 1.
    """

    method: Method = "weighted"
    dense_weight: float = 0.5
    depth: int = 100
    rrf_k: int = 60
    rerank_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in ("weighted", "rrf"):
            raise QueryError(f"fusion is {self.method!r}; it must be weighted or rrf.")
        for name in ("dense_weight", "rerank_weight"):
            value: float = getattr(self, name)
            if not (isinstance(value, Real) and 0 <= value <= 1):
                raise QueryError(f"{name} is {value!r}; it must be a number from 0 to 1.")
        for name in ("depth", "rrf_k"):
            value = getattr(self, name)
            if not (isinstance(value, int | np.integer) and value >= 1):
                raise QueryError(f"{name} is {value!r}; it must be an integer of at least 1.")


def fuse(dense: Ranking, lexical: Ranking, settings: Fusion) -> Ranking:
    """Rank the documents of two rankings by their fused score.

    Documents with equal fused scores, such as those that neither stage ranks within ``depth``, are
    ordered by the better of their two ranks, then by row. The best passage of a document is the one
    that the dense stage chose, if the dense stage found the document.
    """
    docs = distinct(np.concatenate([dense.docs, lexical.docs]))
    rows, total = docs.copy(), np.zeros(len(docs))
    best_rank = np.full(len(docs), np.iinfo(np.int64).max)
    stages = {}
    weights = (1 - settings.dense_weight, settings.dense_weight)
    # The lexical ranking comes first, because its rows are only those of first passages: the dense
    # ranking then overwrites them with the rows of best passages.
    for name, ranking, weight in zip(("lexical", "dense"), (lexical, dense), weights, strict=True):
        at, rank = np.searchsorted(docs, ranking.docs), np.arange(1, len(ranking) + 1)
        ranks, scores = np.zeros(len(docs), np.int64), np.zeros(len(docs))
        ranks[at], scores[at], rows[at] = rank, ranking.scores, ranking.rows
        best_rank[at] = np.minimum(best_rank[at], rank)
        total[at[: settings.depth]] += weight * _points(ranking.scores[: settings.depth], settings)
        stages[name] = ranks, scores
    order = np.lexsort((docs, best_rank, -total))
    fused = Ranking(docs, rows, total, {name: stages[name] for name in ("dense", "lexical")})
    return fused.take(order, total[order]).with_stage("fused")


def mix_scores(
    scores: NDArray[np.float64], reranked: NDArray[np.float64], rerank_weight: float
) -> NDArray[np.float64]:
    """Mix the scores of documents (n,) with those of a reranker (n,).

    If ``rerank_weight`` is 1, the reranker's scores are returned without scaling.
    """
    if rerank_weight == 1:
        return reranked
    return rerank_weight * min_max_scaled(reranked) + (1 - rerank_weight) * min_max_scaled(scores)


def min_max_scaled(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale scores (n,) to 0..1: the lowest to 0, the highest to 1. Equal scores all become 1."""
    if len(scores) == 0:
        return scores
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.ones(len(scores))


def _points(scores: NDArray[np.float64], settings: Fusion) -> NDArray[np.float64]:
    """Return the unweighted fusion scores of one ranked list, (n,)."""
    if settings.method == "rrf":
        return 1 / (settings.rrf_k + np.arange(1.0, len(scores) + 1))
    return min_max_scaled(scores)
