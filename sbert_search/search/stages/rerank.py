"""Reranking: documents are ordered by a reranker's scores, or by a mix with their own scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.errors import ConfigError, QueryError
from sbert_search.search.ranking import Ranking
from sbert_search.search.stages.fusion import Fusion


class PairScorer(Protocol):
    """A reranker, such as a `Reranker` or a ``CrossEncoder`` of sentence-transformers."""

    def predict(self, pairs: list[tuple[str, str]], /) -> ArrayLike:
        """Return the scores of pairs of query and text, (n,); higher is better."""


def rerank(
    reranker: PairScorer,
    queries: Sequence[str],
    texts: Sequence[Sequence[str]],
    rankings: Sequence[Ranking],
    fusion: Fusion,
    *,
    on_scale: bool = False,
) -> list[Ranking]:
    """Order the documents of each query again; one call of the reranker scores all pairs.

    Args:
        reranker: Scores pairs of query and passage.
        queries: The queries.
        texts: The passage of each document of each query.
        rankings: The documents of each query; if ``fusion.rerank_weight`` is below 1, with scores
            on the scale of a fused score.
        fusion: The weight and the range of the reranker's scores.
        on_scale: Whether later stages add to the scores. If they can be brought to the scale of a
            fused score, they are, even if only the reranker's scores count.

    Raises:
        ConfigError: The reranker does not give one score per pair.
        QueryError: The reranker gives a score that is not finite; or the weight is below 1, and
            the range of its scores is unknown.
    """
    weight, scaled = fusion.rerank_weight, scale_of(reranker, fusion)
    if weight < 1 and scaled is None:
        raise QueryError(
            f"rerank_weight is {weight:g}, so the scores of {type(reranker).__name__} are added to "
            "those of the search, but their range is unknown; pass the lowest and the highest "
            "score, such as Fusion(score_range=(0, 1)), or rerank_weight=1."
        )
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
    final = scores if scaled is None or (weight == 1 and not on_scale) else scaled(scores)
    ends = np.cumsum([len(ranking) for ranking in rankings])[:-1]
    by_ranking = zip(rankings, np.split(scores, ends), np.split(final, ends), strict=True)
    return [_reordered(*each, weight) for each in by_ranking]


def scale_of(
    reranker: PairScorer, fusion: Fusion
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]] | None:
    """Return the function that brings a reranker's scores to 0..1; None: their range is unknown."""
    if fusion.score_range is not None:
        low, high = fusion.score_range
        return lambda scores: (scores - low) / (high - low)
    return getattr(reranker, "probabilities", None)


def _reordered(
    ranking: Ranking, reranked: NDArray[np.float64], final: NDArray[np.float64], weight: float
) -> Ranking:
    """Sort by a mix of the reranker's and the present scores; ties keep the present order."""
    scores = final if weight == 1 else weight * final + (1 - weight) * ranking.scores
    ranks = np.empty(len(ranking), np.int64)
    ranks[np.argsort(-reranked, kind="stable")] = np.arange(1, len(ranking) + 1)
    stages = {**ranking.stages, "rerank": (ranks, reranked)}
    order = np.argsort(-scores, kind="stable")
    return replace(ranking, stages=stages).take(order, scores[order])
