"""Reranking: documents are ordered by a reranker's scores, or by a mix with their own scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.errors import ConfigError, QueryError
from sbert_search.search.ranking import Ranking
from sbert_search.search.stages.fusion import mix_scores


class PairScorer(Protocol):
    """A reranker, such as a `Reranker` or a ``CrossEncoder`` of sentence-transformers."""

    def predict(self, pairs: list[tuple[str, str]], /) -> ArrayLike:
        """Return the scores of pairs of query and text, (n,); higher is better."""


def rerank(
    reranker: PairScorer,
    queries: Sequence[str],
    texts: Sequence[Sequence[str]],
    rankings: Sequence[Ranking],
    weight: float,
) -> list[Ranking]:
    """Order the documents of each query again; one call of the reranker scores all pairs.

    Args:
        reranker: Scores pairs of query and passage.
        queries: The queries.
        texts: The passage of each document of each query.
        rankings: The documents of each query.
        weight: Weight of the reranker's score, from 0 to 1; 1: only the reranker's score counts.

    Raises:
        ConfigError: The reranker does not give one score per pair.
        QueryError: The reranker gives a score that is not finite.
    """
    by_query = zip(queries, texts, strict=True)
    pairs = [(query, text) for query, passages in by_query for text in passages]
    scores = np.asarray(reranker.predict(pairs) if pairs else [], np.float64)
    if scores.shape != (len(pairs),):
        raise ConfigError(
            f"The reranker gives scores of shape {scores.shape} for {len(pairs)} pairs, and not "
            f"({len(pairs)},). Use a model that gives one score for a pair; if it does, let its "
            "method predict return scores[:, 0]."
        )
    finite = np.isfinite(scores)
    if not finite.all():
        query, text = pairs[int(np.argmin(finite))]
        raise QueryError(
            f"The reranker gives a score that is not finite for {query[:60]!r} and {text[:60]!r}."
        )
    by_ranking = np.split(scores, np.cumsum([len(ranking) for ranking in rankings])[:-1])
    return [_reordered(r, new, weight) for r, new in zip(rankings, by_ranking, strict=True)]


def _reordered(ranking: Ranking, reranked: NDArray[np.float64], weight: float) -> Ranking:
    """Sort by a mix of the reranker's and the present scores; ties keep the present order."""
    scores = mix_scores(ranking.scores, reranked, weight)
    ranks = np.empty(len(ranking), np.int64)
    ranks[np.argsort(-reranked, kind="stable")] = np.arange(1, len(ranking) + 1)
    stages = {**ranking.stages, "rerank": (ranks, reranked)}
    order = np.argsort(-scores, kind="stable")
    return replace(ranking, stages=stages).take(order, scores[order])
