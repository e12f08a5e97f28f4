"""Select the fusion of dense and lexical rankings by cross-validation on judged queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import EvaluationError
from sbert_search.evaluate.metrics.ranking import score_run
from sbert_search.evaluate.retrieval import own_documents, without_own
from sbert_search.index.index import Index
from sbert_search.records import Qrels, Query
from sbert_search.search.candidates import candidates_of
from sbert_search.search.ranking import Fusion, fuse

# The fusions that are compared: weighted sums with dense weights from 0 to 1 in steps of 0.1, and
# reciprocal rank fusion.
CANDIDATES = (
    *(Fusion(dense_weight=tenths / 10) for tenths in range(11)),
    Fusion(method="rrf", dense_weight=0.5),
)


@dataclass(frozen=True, slots=True)
class FusionChoice:
    """The selected fusion and its scores.

    Attributes:
        fusion: The best fusion over all queries if ``held_out`` is above ``default``; otherwise the
            default fusion, ``Fusion()``.
        scores: Mean score of each fusion over all queries, by name of the fusion.
        held_out: Cross-validated mean score, an estimate of the score on new queries. Each query is
            scored with the fusion that is best on the folds without this query.
        default: Mean score of the default fusion over all queries.
        folds: For each fold, the name of the fusion that is best on the other folds.
    """

    fusion: Fusion
    scores: Mapping[str, float]
    held_out: float
    default: float
    folds: tuple[str, ...]


def name_of(fusion: Fusion) -> str:
    """Return the name of a fusion for a table."""
    constant = f" k = {fusion.rrf_k}," if fusion.method == "rrf" else ""
    return f"{fusion.method},{constant} dense {fusion.dense_weight:g}"


def choose_fusion(
    index: Index,
    embedder: TextEmbedder,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    measure: str = "nDCG@10",
    folds: int = 5,
    seed: int = 0,
) -> FusionChoice:
    """Compare fusions by cross-validation; dense and lexical search run only once for each query.

    Args:
        index: The index, with lexical data.
        embedder: The model of the index.
        queries: Queries that have judgements. Do not pass the queries of a test set, whose scores
            would then be too high.
        qrels: The judgements of all queries.
        measure: The metric to maximise.
        folds: Number of parts into which the queries are split at random.
        seed: Seed of the split.

    Raises:
        EvaluationError: There are fewer queries than folds, fewer than two folds, a query without
            judgements, or an unknown metric; or ir-measures is not installed.
        NoLexicalData: The index has no lexical data.
    """
    if len(queries) < 2:
        raise EvaluationError(
            f"The number of judged queries is {len(queries)}; choosing a fusion needs at least 2."
        )
    if not 2 <= folds <= len(queries):
        raise EvaluationError(
            f"folds is {folds}; it must be from 2 to the number of judged queries, {len(queries)}."
        )
    for query in queries:
        if query.query_id not in qrels:
            raise EvaluationError(f"The query {query.query_id!r} has no judgements; leave it out.")
    score_run({}, {}, [measure])  # an unknown metric is refused before the searches
    scores = _scores(index, embedder, queries, qrels, measure)  # (n_candidates, n_queries)
    fold = np.random.default_rng(seed).permutation(len(queries)) % folds
    best = [int(scores[:, fold != f].mean(axis=1).argmax()) for f in range(folds)]
    names = [name_of(fusion) for fusion in CANDIDATES]
    means = scores.mean(axis=1)
    held_out = float(scores[np.array(best)[fold], np.arange(len(queries))].mean())
    default = float(means[CANDIDATES.index(Fusion())])
    return FusionChoice(
        fusion=CANDIDATES[int(means.argmax())] if held_out > default else Fusion(),
        scores=dict(zip(names, means.tolist(), strict=True)),
        held_out=held_out,
        default=default,
        folds=tuple(names[i] for i in best),
    )


def _scores(
    index: Index, embedder: TextEmbedder, queries: Sequence[Query], qrels: Qrels, measure: str
) -> np.ndarray:
    """Compute the score of each query with each fusion, (n_candidates, n_queries)."""
    snapshot, depth = index.state, Fusion().depth
    own = own_documents(index, queries, qrels)
    texts = [query.text for query in queries]
    found = list(candidates_of(snapshot, texts, embedder.encode_query(texts), depth))
    values = []
    for fusion in CANDIDATES:
        run = {}
        for query, candidates in zip(queries, found, strict=True):
            ranking = fuse(candidates, fusion)
            ids = snapshot.doc_ids(ranking.docs)
            run[query.query_id] = {doc_id: -float(rank) for rank, doc_id in enumerate(ids)}
        per_query = score_run(without_own(run, own), qrels, [measure])[measure]
        values.append([per_query[query.query_id] for query in queries])
    return np.array(values)
