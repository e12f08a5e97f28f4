"""Compute ranking metrics for each query, as trec_eval defines them, with ir-measures.

A run (the hits of each query) is evaluated in the order in which users see it. trec_eval sorts by
score in 32 bits and breaks ties by descending document id, MS MARCO's MRR@k by ascending id. This
module therefore passes ``n - rank`` to ir-measures as scores, which have no ties.

Every query with judgements (qrels) counts. The value of a query without hits, or without a relevant
document, is 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from types import ModuleType

import xxhash

from sbert_search.errors import EvaluationError, install
from sbert_search.records import Qrels, Run

DEFAULT_MEASURES = ("nDCG@10", "recall@100", "MRR@10", "MAP")

PerQuery = dict[str, float]
"""``per_query[query_id]`` is the value of one metric."""

# Names in ir-measures by the names of this package.
_NAMES = {"nDCG": "nDCG", "recall": "R", "MRR": "RR", "MAP": "AP"}


def score_run(
    run: Run, qrels: Qrels, measures: Iterable[str] = DEFAULT_MEASURES
) -> dict[str, PerQuery]:
    """Compute metrics, such as nDCG@10, of a run: ``scores[measure][query_id]``, in qrels' order.

    Hits with equal scores rank in the order of the mapping. Queries without judgements are ignored.

    Source of nDCG: Järvelin & Kekäläinen 2002, Cumulated gain-based evaluation.
    """
    ir_measures = _ir_measures()
    names = {_parse(ir_measures, name): name for name in measures}
    scores = {name: dict.fromkeys(qrels, 0.0) for name in names.values()}
    ranked = {query: _by_rank(query, hits) for query, hits in run.items() if query in qrels}
    # Grades below 1 count as 0. Where all grades of a query are below -1, pytrec_eval crashes.
    judged = {q: {d: max(grade, 0) for d, grade in grades.items()} for q, grades in qrels.items()}
    for metric in ir_measures.iter_calc(list(names), judged, ranked):
        scores[names[metric.measure]][metric.query_id] = float(metric.value)
    return scores


def mean(per_query: Mapping[str, float]) -> float:
    """Average over the queries, of which there must be one."""
    if not per_query:
        raise ValueError("The mean over no queries is undefined.")
    return sum(per_query.values()) / len(per_query)


def _by_rank(query: str, hits: Mapping[str, float]) -> dict[str, float]:
    if no_number := [doc_id for doc_id, score in hits.items() if math.isnan(score)]:
        raise EvaluationError(
            f"The score of document {no_number[0]!r} for query {query!r} is NaN, so that it has no "
            "rank; check the model that computed it."
        )
    ranked = sorted(hits, key=lambda doc_id: -hits[doc_id])  # stable: equal scores keep their order
    return {doc_id: float(len(ranked) - rank) for rank, doc_id in enumerate(ranked)}


def _parse(ir_measures: ModuleType, name: str) -> object:
    if not re.fullmatch(r"(nDCG|recall|MRR)@[1-9]\d*|MAP|MRR", name):
        raise EvaluationError(f"{name!r} is not a metric; use nDCG@k, recall@k, MRR@k, MRR or MAP.")
    base, _, cutoff = name.partition("@")
    measure = getattr(ir_measures, _NAMES[base])
    return measure @ int(cutoff) if cutoff else measure


def _ir_measures() -> ModuleType:
    try:
        import ir_measures
    except ModuleNotFoundError as error:
        raise EvaluationError(f"Ranking metrics need ir-measures; run: {install()}.") from error
    return ir_measures


def tie_hash(query: str, document: str) -> int:
    """Return the hash by which documents with equal scores for a query are ordered."""
    return xxhash.xxh3_64_intdigest(f"{query}\0{document}".encode())


def ties_by_hash(run: Run, first: int = 0) -> dict[str, dict[str, float]]:
    """Order hits with equal scores by `tie_hash`; the first ``first`` stay before the others."""

    def ordered(query_id: str, hits: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        ranks = {doc_id: rank for rank, doc_id in enumerate(hits)}
        for (score, _), tied in groupby(hits, lambda each: (hits[each], ranks[each] < first)):
            yield from ((doc_id, score) for doc_id in sorted(tied, key=partial(tie_hash, query_id)))

    return {query_id: dict(ordered(query_id, hits)) for query_id, hits in run.items()}
