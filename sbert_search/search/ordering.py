"""The stages that order the candidates again: the reranker, boosts, ``min_score`` and diversity.

Source: Carbonell & Goldstein 1998, The Use of MMR, Diversity-Based Reranking for Reordering
Documents and Producing Summaries (SIGIR), with lambda = 1 - diversity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.errors import ConfigError, QueryError
from sbert_search.index.norms import least_score, unit_vectors
from sbert_search.index.snapshot import Snapshot
from sbert_search.records import MetadataValue
from sbert_search.search.candidates import best_passages, dense_parts
from sbert_search.search.fusion import Ranking, lexical_part
from sbert_search.search.options import Boost, Fusion, SearchOptions
from sbert_search.search.retrieval import Retrieved


def _on_scale(snapshot: Snapshot, found: Retrieved, options: SearchOptions) -> Ranking:
    """Return the ranking of retrieval with scores on the scale of a fused score, 1 for the best.

    These are the dense part alone in dense search, and the lexical part alone in lexical search.
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


def reranked(
    snapshot: Snapshot, block: Sequence[Retrieved], options: SearchOptions, reranker: PairScorer
) -> list[Retrieved]:
    """Order the candidates of each query again; one call of the reranker scores all pairs.

    If ``rerank_weight`` is below 1, the scores before are brought to the scale of a fused score. If
    boosts add to the scores, the reranker's are brought to that scale if possible, even if only
    they count.
    """
    fusion, weight = options.fusion, options.fusion.rerank_weight
    rankings = [
        best_passages(snapshot, found.query, found.ranking, found.near, group=options.group)
        for found in block
    ]
    texts = [[passage.text for passage in snapshot.fetch(ranking.rows)] for ranking in rankings]
    if weight < 1:
        on_scale = [f._replace(ranking=r) for f, r in zip(block, rankings, strict=True)]
        rankings = [_on_scale(snapshot, found, options) for found in on_scale]
    scaled = scale_of(reranker, fusion)
    if weight < 1 and scaled is None:
        raise QueryError(
            f"rerank_weight is {weight:g}, so the scores of {type(reranker).__name__} are added to "
            "those of the search, but their range is unknown; pass the lowest and the highest "
            "score, such as Fusion(score_range=(0, 1)), or rerank_weight=1."
        )
    by_query = zip([found.query for found in block], texts, strict=True)
    pairs = [(query, text) for query, passages in by_query for text in passages]
    scores = _scores_of(reranker, pairs)
    final = scores if scaled is None or (weight == 1 and not options.boost) else scaled(scores)
    ends = np.cumsum([len(ranking) for ranking in rankings])[:-1]
    by_ranking = zip(rankings, np.split(scores, ends), np.split(final, ends), strict=True)
    ordered = [_by_reranker(*each, weight) for each in by_ranking]
    return [found._replace(ranking=ranking) for found, ranking in zip(block, ordered, strict=True)]


def reordered(
    snapshot: Snapshot, found: Retrieved, options: SearchOptions, reranker: PairScorer | None
) -> Ranking:
    """Apply boosts, ``min_score`` and diversity, and append the documents behind the candidates."""
    ranking, others = found.ranking, found.others
    if options.boost:
        ranking = ranking if reranker is not None else _on_scale(snapshot, found, options)
        ranking = add_boosts(snapshot, ranking, options.boosts)
    if (least := options.min_score) is not None:
        of_retrieval = options.least is not None
        if options.mode == "dense" and of_retrieval:
            settings = snapshot.settings
            least = least_score(least, settings.metric, settings.dtype)
        ranking = ranking.above(least)
        if others is not None:
            # After a reranker or boosts, the scores of the others have another range.
            others = others.above(least) if of_retrieval else None
    if options.diversity:
        relevance = _relevance(snapshot, found._replace(ranking=ranking), options, reranker)
        ranking = best_passages(snapshot, found.query, ranking, found.near, group=options.group)
        n = len(ranking) if options.group_by else options.offset + options.k
        ranking = diversify(snapshot, ranking, relevance, options.diversity, n)
    return ranking if others is None else ranking.followed_by(others)


def _relevance(
    snapshot: Snapshot, found: Retrieved, options: SearchOptions, reranker: PairScorer | None
) -> NDArray[np.float64]:
    """Return the scores of the candidates on the scale of a fused score, as far as it is known."""
    if options.boost or (reranker is not None and options.fusion.rerank_weight < 1):
        return found.ranking.scores
    if reranker is None:
        return _on_scale(snapshot, found, options).scores
    scale = scale_of(reranker, options.fusion)
    return found.ranking.scores if scale is None else scale(found.ranking.scores)


_DAY_S = 86_400


def add_boosts(snapshot: Snapshot, ranking: Ranking, boosts: Sequence[Boost]) -> Ranking:
    """Add boosts to the scores of a ranking and order it by the sums; ties keep their order."""
    scores = ranking.scores
    for boost in boosts:
        _check_type(snapshot, boost)
        gains = _gains(boost, snapshot.metadata(boost.column, ranking.docs))
        with np.errstate(over="ignore", invalid="ignore"):
            scores = scores + boost.weight * gains
        if not np.isfinite(scores).all():
            raise QueryError(
                f"The boost of {boost.column!r} by {boost.weight:g} gives scores that are not "
                "finite; use a smaller weight."
            )
    order = np.argsort(-scores, kind="stable")
    return ranking.take(order, scores[order]).with_stage("boost")


def _check_type(snapshot: Snapshot, boost: Boost) -> None:
    kind = snapshot.column_type(boost.column)
    numbers = ("int64", "float64", "bool")
    suited = ("date", "timestamp") if boost.kind == "recency" else numbers
    if kind not in suited:
        needed, example, other = (
            ("dates or times", "date", "date:%d.%m.%Y")
            if boost.kind == "recency"
            else ("numbers", "float", "float:1.234,56")
        )
        hint = (
            f" If its texts are {needed}, build the index with --column-type "
            f"{boost.column}={example}, or with their format, such as {boost.column}={other}."
        )
        raise QueryError(
            f"The column {boost.column!r} is {kind}; a {boost.kind} boost needs a column of "
            f"{needed}.{hint if kind == 'string' else ''}"
        )


def _gains(boost: Boost, values: Sequence[MetadataValue]) -> NDArray[np.float64]:
    """Return f(value) for each value, as `Boost` defines f, float64 (n,); 0 for a missing value."""
    if boost.kind == "recency":
        now = _seconds(boost.now or datetime.now(UTC))
        assert boost.half_life_days is not None
        half_life_s = boost.half_life_days * _DAY_S
        ages = [None if v is None else max(now - _seconds(v), 0.0) for v in values]
        return np.array([0.0 if age is None else 0.5 ** (age / half_life_s) for age in ages])
    numbers = np.array([0.0 if value is None else value for value in values]).astype(np.float64)
    return numbers if boost.kind == "linear" else np.log1p(np.maximum(numbers, 0.0))


def _seconds(moment: object) -> float:
    """Return a date or time as seconds since 1970; a date stands for its beginning in UTC."""
    if isinstance(moment, datetime):
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    assert isinstance(moment, date)
    return datetime.combine(moment, time(), UTC).timestamp()


# Cosines are rounded, so that equal vectors are equally similar in spite of float32's errors.
_DECIMALS = 6


def diversify(
    snapshot: Snapshot,
    ranking: Ranking,
    relevance: NDArray[np.float64],
    diversity: float,
    n: int,
) -> Ranking:
    """Choose n documents one by one: each is relevant and unlike those chosen before.

    The next document is the one with the highest ``(1 - diversity) * relevance - diversity *
    similarity``; ties go to the better rank. The similarity is the highest cosine, of the stored
    vectors of best passages, to a document chosen before; 0 for the first one. The scores stay;
    those of the stage ``mmr`` are the values of the formula.
    """
    n = min(n, len(ranking))
    if n == 0:
        return ranking.with_stage("mmr")
    vectors = unit_vectors(snapshot.vectors(ranking.rows))
    gains = (1 - diversity) * relevance
    closest, free = np.zeros(len(ranking)), np.ones(len(ranking), bool)
    chosen, values = np.empty(n, np.int64), np.empty(n)
    for i in range(n):
        value = np.where(free, gains - diversity * closest, -np.inf)
        chosen[i] = best = int(np.argmax(value))
        values[i], free[best] = value[best], False
        similarity = np.round((vectors @ vectors[best]).astype(np.float64), _DECIMALS)
        closest = similarity if i == 0 else np.maximum(closest, similarity)
    kept = ranking.take(chosen)
    return replace(kept, stages={**kept.stages, "mmr": (np.arange(1, n + 1), values)})


class PairScorer(Protocol):
    """A reranker, such as a `Reranker` or a ``CrossEncoder`` of sentence-transformers."""

    def predict(self, pairs: list[tuple[str, str]], /) -> ArrayLike:
        """Return the scores of pairs of query and text, (n,); higher is better."""


def _scores_of(reranker: PairScorer, pairs: list[tuple[str, str]]) -> NDArray[np.float64]:
    """Score all pairs, (n,); refuse scores of another shape, and scores that are not finite."""
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
    return scores


def scale_of(
    reranker: PairScorer, fusion: Fusion
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]] | None:
    """Return the function that brings a reranker's scores to 0..1; None: their range is unknown."""
    if fusion.score_range is not None:
        low, high = fusion.score_range
        return lambda scores: (scores - low) / (high - low)
    return getattr(reranker, "probabilities", None)


def _by_reranker(
    ranking: Ranking, reranked: NDArray[np.float64], final: NDArray[np.float64], weight: float
) -> Ranking:
    """Sort by a mix of the reranker's and the present scores; ties keep the present order."""
    scores = final if weight == 1 else weight * final + (1 - weight) * ranking.scores
    ranks = np.empty(len(ranking), np.int64)
    ranks[np.argsort(-reranked, kind="stable")] = np.arange(1, len(ranking) + 1)
    stages = {**ranking.stages, "rerank": (ranks, reranked)}
    order = np.argsort(-scores, kind="stable")
    return replace(ranking, stages=stages).take(order, scores[order])
