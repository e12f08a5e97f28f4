"""Reranking: does a cross-encoder put the relevant ones of given candidates first?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sbert_search.corpus.candidates import Candidates
from sbert_search.metrics.ranking import PerQuery, score_run
from sbert_search.records import Run
from sbert_search.search.reordering import PairScorer

MEASURES = ("nDCG@10", "MAP", "MRR")


@dataclass(frozen=True, slots=True)
class Reranked:
    """Candidates in a new order.

    Attributes:
        run: Score of each candidate of each query.
        per_query: ``per_query[measure][query_id]``.
    """

    run: Run
    per_query: dict[str, PerQuery]


def rerank(
    candidates: Sequence[Candidates], scorer: PairScorer, measures: Iterable[str] = MEASURES
) -> Reranked:
    """Score every candidate and judge the order that the scores give.

    Args:
        candidates: Queries; one without candidates, or without a relevant one, scores 0.
        scorer: A `Reranker` or a plain ``CrossEncoder`` with one score a pair.
        measures: As `metrics.ranking.score_run` names them.
    """
    pairs = [(each.query, text) for each in candidates for text in each.texts.values()]
    scores = iter(np.asarray(scorer.predict(pairs), dtype=np.float64).tolist() if pairs else ())
    run = {each.query_id: dict(zip(each.texts, scores, strict=False)) for each in candidates}
    qrels = {each.query_id: each.grades for each in candidates}
    return Reranked(run, score_run(run, qrels, measures))
