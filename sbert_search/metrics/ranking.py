"""Ranking metrics, one value a query, in trec_eval's definitions through ir-measures.

A run is judged in the order it was shown. trec_eval itself sorts by score, keeps scores in 32 bits,
and puts the larger document id first among equal ones, while its MRR@k cousin (MS MARCO) puts the
smaller one first; so near-ties would be judged in an order that nobody saw. What is passed on is
therefore ``n - rank``, which has no ties.

Every judged query counts: one without an answer, or without a relevant document, scores 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sbert_search.errors import EvaluationError
from sbert_search.records import Qrels, Run

DEFAULT_MEASURES = ("nDCG@10", "recall@100", "MRR@10", "MAP")

PerQuery = dict[str, float]
"""``per_query[query_id]`` is the value of one measure."""

_NAMES = {"nDCG": "nDCG", "recall": "R", "MRR": "RR", "MAP": "AP"}  # ours -> ir-measures'


def ndcg_at_k(run: Run, qrels: Qrels, k: int = 10) -> PerQuery:
    """Gain of the first k hits, grade over log2(rank + 1), as a share of the best possible order.

    Source: Järvelin & Kekäläinen 2002, Cumulated gain-based evaluation; trec_eval ``ndcg_cut``.
    """
    return _one(f"nDCG@{k}", run, qrels)


def recall_at_k(run: Run, qrels: Qrels, k: int = 100) -> PerQuery:
    """Share of a query's relevant documents (grade at least 1) among the first k hits."""
    return _one(f"recall@{k}", run, qrels)


def mrr_at_k(run: Run, qrels: Qrels, k: int = 10) -> PerQuery:
    """One over the rank of the first relevant document, 0 when it is not among the first k."""
    return _one(f"MRR@{k}", run, qrels)


def average_precision(run: Run, qrels: Qrels) -> PerQuery:
    """Mean over the relevant documents of the precision at their rank; 0 for those not found."""
    return _one("MAP", run, qrels)


def score_run(
    run: Run, qrels: Qrels, measures: Iterable[str] = DEFAULT_MEASURES
) -> dict[str, PerQuery]:
    """Score a run query by query.

    Args:
        run: Hits of each query by falling score; equal scores in the order of the mapping.
        qrels: Judgements; queries outside them are ignored.
        measures: Names such as nDCG@10, recall@100, MRR@10, MRR, MAP.

    Returns:
        ``scores[measure][query_id]``, queries in the order of the qrels.

    Raises:
        EvaluationError: A measure has another name, or ir-measures is not installed.
    """
    ir_measures = _ir_measures()
    names = {_parse(ir_measures, name): name for name in measures}
    scores = {name: dict.fromkeys(qrels, 0.0) for name in names.values()}
    shown = {query: _by_rank(hits) for query, hits in run.items() if query in qrels}
    judged = {query: dict(grades) for query, grades in qrels.items()}
    for metric in ir_measures.iter_calc(list(names), judged, shown):
        scores[names[metric.measure]][metric.query_id] = float(metric.value)
    return scores


def mean(per_query: Mapping[str, float]) -> float:
    """Average over the queries.

    Raises:
        ValueError: There is no query.
    """
    if not per_query:
        raise ValueError("A mean over no query is not defined.")
    return sum(per_query.values()) / len(per_query)


def _one(name: str, run: Run, qrels: Qrels) -> PerQuery:
    return score_run(run, qrels, [name])[name]


def _by_rank(hits: Mapping[str, float]) -> dict[str, float]:
    shown = sorted(hits, key=lambda doc_id: -hits[doc_id])  # stable: equal scores keep their order
    return {doc_id: float(len(shown) - place) for place, doc_id in enumerate(shown)}


def _parse(ir_measures: Any, name: str) -> Any:
    match = re.fullmatch(r"(nDCG|recall|MRR)@([1-9]\d*)|(MAP|MRR)", name)
    if match is None:
        raise EvaluationError(f"{name!r} is no measure; use nDCG@k, recall@k, MRR@k, MRR or MAP.")
    base, cutoff, whole = match.groups()
    if whole:
        return getattr(ir_measures, _NAMES[whole])
    return getattr(ir_measures, _NAMES[base]) @ int(cutoff)


def _ir_measures() -> Any:
    try:
        import ir_measures
    except ModuleNotFoundError as error:
        raise EvaluationError(
            "Ranking metrics need ir-measures; run: python -m pip install 'sbert-search[eval]'."
        ) from error
    return ir_measures
