"""Evaluate a reranker on given candidates, or a cross-encoder on natural language inference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sbert_search.config import unknown_name
from sbert_search.errors import EvaluationError
from sbert_search.evaluate.manifest import Evaluation, EvaluationTracker
from sbert_search.evaluate.metrics.ranking import PerQuery, mean, score_run, tie_hash
from sbert_search.evaluate.similarity import require_finite
from sbert_search.evaluate.tasks import EvalTask
from sbert_search.records import Run
from sbert_search.search.rerankers import BestWindow, Reranker
from sbert_search.text.labelled.candidates import Candidates, labelled_candidates
from sbert_search.text.labelled.pairs import NO_LABEL, read_pairs
from sbert_search.text.labelled.records import TextPair

MEASURES = ("nDCG@10", "MAP", "MRR")


@dataclass(frozen=True, slots=True)
class Reranked:
    """Reranked candidates and their metrics."""

    run: Run  # scores by query and candidate
    per_query: dict[str, PerQuery]  # by metric and query


def rerank(
    candidates: Sequence[Candidates],
    scorer: Reranker | BestWindow,
    measures: Iterable[str] = MEASURES,
) -> Reranked:
    """Score every candidate and compute the metrics of the resulting ranking.

    Candidates with equal scores are ordered by a hash, since in a file relevant texts often come
    first: a model that gives all texts the same score would then get the best metrics. A query
    without a relevant candidate scores 0 in every metric.
    """
    pairs = [(each.query, text) for each in candidates for text in each.texts.values()]
    scores = iter(np.asarray(scorer.predict(pairs), np.float64).tolist() if pairs else ())
    run = {}
    for each in candidates:
        scored = dict(zip(each.texts, scores, strict=False))
        order = sorted(scored, key=lambda doc_id: tie_hash(each.query, each.texts[doc_id]))
        run[each.query_id] = {doc_id: scored[doc_id] for doc_id in order}
    qrels = {each.query_id: each.grades for each in candidates}
    return Reranked(run, score_run(run, qrels, measures))


def evaluate_rerank(task: EvalTask, reranker: Reranker, *, data: Path, seed: int = 0) -> Evaluation:
    """Rerank the candidates of each query in a file of graded pairs, and compute the metrics."""
    score_run({}, {}, [task.main_metric])  # an unknown metric is refused before the scoring
    if reranker.num_labels != 1:
        raise EvaluationError(
            f"The model has {reranker.num_labels} labels; reranking needs one score for a pair."
        )
    tracker = EvaluationTracker(task, data, seed=seed)
    file, names = data / task.path, task.columns
    every = labelled_candidates(file, text1=names.text1, text2=names.text2, label=names.label)
    mixed = [each for each in every if len({grade > 0 for grade in each.grades.values()}) == 2]
    kept = mixed if task.queries == "clean" else every
    if not kept:
        raise EvaluationError(f"{task.name}: no query has both relevant and other candidates.")
    tracker.lap("read")
    reranked = rerank(kept, reranker, dict.fromkeys((task.main_metric, *MEASURES)))
    tracker.lap("score")
    return tracker.finish(
        reranker.identity,
        scores={name: mean(values) for name, values in reranked.per_query.items()},
        per_item=reranked.per_query,
        counts={
            "queries": len(kept),
            "queries whose candidates are all relevant or all not": len(every) - len(mixed),
            "candidates": sum(len(each.texts) for each in kept),
        },
        settings={"queries": task.queries},
        run=reranked.run,
    )


def evaluate_nli(task: EvalTask, model: Reranker, *, data: Path, seed: int = 0) -> Evaluation:
    """Classify the pairs of a file, except those labelled ``-``, and compute the accuracy.

    The model's classes must have the names of the labels; case is ignored. ``balanced`` is the mean
    of the per-label accuracies.
    """
    tracker = EvaluationTracker(task, data, seed=seed)
    classes = [label.lower() for label in model.labels]
    pairs, n_left_out = _read_labelled_pairs(task, data, classes)
    scores = model.predict([(pair.text1, pair.text2) for pair, _ in pairs.values()])
    tracker.lap("score")
    require_finite(scores, "logits", "pairs", [pair.source for pair, _ in pairs.values()])
    predicted = [classes[index] for index in scores.argmax(axis=1)]
    gold = [label for _, label in pairs.values()]
    right = [float(a == b) for a, b in zip(predicted, gold, strict=True)]
    by_label = {
        label: [value for value, own in zip(right, gold, strict=True) if own == label]
        for label in sorted(set(gold))
    }
    return tracker.finish(
        model.identity,
        scores={
            "accuracy": sum(right) / len(right),
            "balanced": sum(sum(v) / len(v) for v in by_label.values()) / len(by_label),
        },
        per_item={"accuracy": dict(zip(pairs, right, strict=True))},
        counts={
            "pairs": len(pairs),
            "pairs left out (no label)": n_left_out,
            **{f"pairs labelled {label}": len(values) for label, values in by_label.items()},
        },
    )


def _read_labelled_pairs(
    task: EvalTask, data: Path, classes: Sequence[str]
) -> tuple[dict[str, tuple[TextPair, str]], int]:
    """Return pairs with their labels, by index in the file, and the number of unlabelled pairs."""
    names = task.columns
    pairs = read_pairs(
        data / task.path, text1=names.text1, text2=names.text2, label=names.label, need=["label"]
    )
    kept = {}
    for index, pair in enumerate(pairs):
        label = str(pair.label).lower()
        if label != NO_LABEL and label not in classes:
            raise EvaluationError(f"{pair.source}: {unknown_name(label, label, classes, 'label')}")
        if label != NO_LABEL:
            kept[str(index)] = pair, label
    if not kept:
        raise EvaluationError(f"{data / task.path}: no pair has a label, only {NO_LABEL!r}.")
    return kept, len(pairs) - len(kept)
