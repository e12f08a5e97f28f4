"""One order from several: ranks of dense and lexical search fused, a reranker's score mixed in.

Sources: reciprocal ranks: Cormack, Clarke & Büttcher 2009 (SIGIR), k = 60. Weighted sum of
min-max normalised scores: Bruch, Gai & Ingber 2023, An Analysis of Fusion Functions for Hybrid
Retrieval, section 4 (arXiv:2210.11934).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import QueryError
from sbert_search.search.ranking import Ranking

Method = Literal["weighted", "rrf"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fusion:
    """How two rankings become one; the defaults need no labels.

    Attributes:
        method: ``weighted``: sum of scores, scaled for each query and stage so that the best has 1
            and the one at ``depth`` 0; ``rrf``: sum of ``1 / (rrf_k + rank)``. A document that a
            stage did not find, or found below ``depth``, has 0 of it.
        dense_weight: Share of the dense stage, from 0 to 1; the lexical stage has the rest.
        depth: Documents of each stage that count, however many are asked for.
        rrf_k: How slowly reciprocal ranks fall.
        rerank_weight: Share of the reranker's score in the final order, from 0 to 1; the rest
            belongs to the score before it, both scaled to 0..1 over the documents reranked.
    """

    method: Method = "weighted"
    dense_weight: float = 0.5
    depth: int = 100
    rrf_k: int = 60
    rerank_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in ("weighted", "rrf"):
            raise QueryError(f"There is no fusion {self.method!r}; there is: weighted, rrf.")
        for name in ("dense_weight", "rerank_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise QueryError(f"{name} is {getattr(self, name)}; it must be from 0 to 1.")
        for name in ("depth", "rrf_k"):
            if getattr(self, name) < 1:
                raise QueryError(f"{name} is {getattr(self, name)}; it must be at least 1.")


def fuse(dense: Ranking, lexical: Ranking, settings: Fusion) -> Ranking:
    """Join the documents of two rankings under one score.

    Equal scores, as below the depth of both stages, come in the order of their better rank, and
    then of rows. A document's best passage is that of the dense stage where it found it.
    """
    docs = np.union1d(dense.docs, lexical.docs)
    rows, total = docs.copy(), np.zeros(len(docs))
    better = np.full(len(docs), np.iinfo(np.int64).max)
    stages = {}
    weights = (1 - settings.dense_weight, settings.dense_weight)
    for name, ranking, weight in zip(("lexical", "dense"), (lexical, dense), weights, strict=True):
        at, rank = np.searchsorted(docs, ranking.docs), np.arange(1, len(ranking) + 1)
        ranks, scores = np.zeros(len(docs), np.int64), np.zeros(len(docs))
        ranks[at], scores[at], rows[at] = rank, ranking.scores, ranking.rows
        better[at] = np.minimum(better[at], rank)
        total[at[: settings.depth]] += weight * _shares(ranking.scores[: settings.depth], settings)
        stages[name] = ranks, scores
    order = np.lexsort((docs, better, -total))
    fused = Ranking(docs, rows, total, {name: stages[name] for name in ("dense", "lexical")})
    return fused.take(order, total[order]).with_stage("fused")


def mix_scores(
    scores: NDArray[np.float64], reranked: NDArray[np.float64], rerank_weight: float
) -> NDArray[np.float64]:
    """Mix the scores that documents had with those of a reranker, all (n,).

    A weight of 1 gives the reranker's scores as they are.
    """
    if rerank_weight == 1:
        return reranked
    return rerank_weight * min_max_scaled(reranked) + (1 - rerank_weight) * min_max_scaled(scores)


def min_max_scaled(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bring scores (n,) to 0..1, the worst to 0; all of them to 1 when they are equal."""
    if len(scores) == 0:
        return scores
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.ones(len(scores))


def _shares(scores: NDArray[np.float64], settings: Fusion) -> NDArray[np.float64]:
    if settings.method == "rrf":
        return 1 / (settings.rrf_k + np.arange(1.0, len(scores) + 1))
    return min_max_scaled(scores)
