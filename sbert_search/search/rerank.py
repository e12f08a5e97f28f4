"""Reranking: hits are ordered by a reranker's scores, or by a mix of these and their own scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.errors import ConfigError, QueryError
from sbert_search.records import Hit, StageScore
from sbert_search.search.fusion import mix_scores
from sbert_search.search.hits import passage_of


class PairScorer(Protocol):
    """Interface of a reranker; `Reranker` and sentence-transformers' ``CrossEncoder`` have it."""

    def predict(self, pairs: list[tuple[str, str]], /) -> ArrayLike:
        """Return the scores of pairs of query and text, (n,); higher is better."""


def rerank(
    reranker: PairScorer, queries: Sequence[str], hits: Sequence[list[Hit]], weight: float
) -> list[list[Hit]]:
    """Order the hits of each query again; one call of the reranker scores all pairs.

    Args:
        reranker: Scores pairs of query and passage.
        queries: The queries.
        hits: The hits of each query.
        weight: Weight of the reranker's score, from 0 to 1. 1: only that score counts.

    Raises:
        ConfigError: The reranker does not give one score per pair.
        QueryError: The reranker gives a score that is not finite.
    """
    by_query = zip(queries, hits, strict=True)
    pairs = [(query, passage_of(hit)) for query, found in by_query for hit in found]
    scores = np.asarray(reranker.predict(pairs) if pairs else [], np.float64)
    if scores.shape != (len(pairs),):
        raise ConfigError(
            f"The reranker gives {scores.size // len(pairs)} scores for a pair; use a model that "
            "gives one score."
        )
    finite = np.isfinite(scores)
    if not finite.all():
        query, text = pairs[int(np.argmin(finite))]
        raise QueryError(
            f"The reranker gives a score that is not finite for {query[:60]!r} and {text[:60]!r}."
        )
    by_hits = np.split(scores, np.cumsum([len(found) for found in hits])[:-1])
    return [_reordered(found, new, weight) for found, new in zip(hits, by_hits, strict=True)]


def _reordered(hits: list[Hit], reranked: NDArray[np.float64], weight: float) -> list[Hit]:
    """Sort hits by a mix of the reranker's and their own scores; ties keep the present order."""
    scores = mix_scores(np.array([hit.score for hit in hits]), reranked, weight)
    ranks = np.empty(len(hits), np.int64)
    ranks[np.argsort(-reranked, kind="stable")] = np.arange(1, len(hits) + 1)
    return [
        replace(
            hits[at],
            rank=rank,
            score=float(scores[at]),
            stages={**hits[at].stages, "rerank": StageScore(int(ranks[at]), float(reranked[at]))},
        )
        for rank, at in enumerate(np.argsort(-scores, kind="stable").tolist(), 1)
    ]
