"""Evaluate task heads: classifiers of texts, taggers, and models that answer questions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.protocol import Vectors
from sbert_search.errors import EvaluationError
from sbert_search.evaluate.manifest import Evaluation, EvaluationTracker
from sbert_search.evaluate.metrics.classification import (
    CLASSES,
    COUNTS,
    EntityScores,
    accuracy,
    answer_f1,
    confusion,
    exact_match,
    f1,
    macro_f1,
    matthews,
    scores_by_type,
    sentence_counts,
)
from sbert_search.evaluate.metrics.correlation import METRICS, pearson, spearman
from sbert_search.evaluate.tasks import EvalTask, TaskColumns
from sbert_search.heads.calibration import calibration_error, probabilities
from sbert_search.heads.labelled_spans import read_questions, read_tagged_tokens
from sbert_search.heads.predictor import Predictor, Text
from sbert_search.heads.training_rows import targets_of
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.token_classifier import TokenClassifier
from sbert_search.text.labelled.records import LabelledText, Question
from sbert_search.text.labelled.texts import read_labelled_texts

PerItem = dict[str, dict[str, float]]
Scores = dict[str, float]


def evaluate_classify(
    task: EvalTask, predictor: Predictor, *, data: Path, seed: int = 0
) -> Evaluation:
    """Classify the texts of a file whose labels are the classes of the model.

    If a class has a default name such as ``LABEL_3``, the file may also name it ``3``. The metrics
    depend on the model, each with the calibration error (ECE) at its temperature and at 1:

    - One class for each text: accuracy, macro F1, Matthews correlation.
    - Several classes for a text: F1 over all labels, and the share of texts whose classes are all
      right (accuracy).
    - A number for each text: Spearman and Pearson correlation, without ECE. Spearman is the main
      metric, unless the task names Pearson.
    """
    model = predictor.model
    if not isinstance(model, SequenceClassifier):
        raise EvaluationError(f"{predictor.opened.name} is no classifier of texts.")
    if model.kind == "number" and task.main_metric not in METRICS:
        task = replace(task, main_metric="spearman")
    tracker, names = EvaluationTracker(task, data, seed=seed), task.columns
    read = partial(
        read_labelled_texts,
        kind=model.kind,
        text=names.text1,
        text2=names.text2,
        label=names.label or names.score,
    )
    rows = [row for file in tracker.files for row in read(file)]
    texts: list[Text] = [row.text if row.text2 is None else (row.text, row.text2) for row in rows]
    logits = predictor.logits(texts)
    tracker.lap("predict")
    if model.kind == "number":
        scores, items = _of_numbers(logits[:, 0].tolist(), rows)
    elif model.kind == "class":
        scores, items = _of_classes(model, logits, targets_of(model, rows))
    else:
        scores, items = _of_label_sets(model, logits, targets_of(model, rows))
    return tracker.finish(
        predictor.identity,
        scores=scores,
        per_item=items,
        counts={"texts": len(rows)},
        settings={"temperature": model.temperature} if model.kind != "number" else {},
    )


def evaluate_tag(task: EvalTask, predictor: Predictor, *, data: Path, seed: int = 0) -> Evaluation:
    """Tag the sentences of a file, and count the entities as CoNLL does, also by type."""
    model = predictor.model
    if not isinstance(model, TokenClassifier) or model.scheme is None:
        raise EvaluationError(f"{predictor.opened.name} does not tag entities.")
    tracker = EvaluationTracker(task, data, seed=seed)
    names, scheme = task.columns, model.scheme
    read = partial(
        read_tagged_tokens,
        tokens=names.tokens,
        tags=names.tags,
        to=scheme,
        bad_tags=task.bad_tags,
    )
    sentences = [sentence for file in tracker.files for sentence in read(file)]
    predicted = predictor.tag_words([sentence.tokens for sentence in sentences])
    tracker.lap("predict")
    gold = [sentence.tags for sentence in sentences]
    counts = sentence_counts(gold, predicted, scheme)
    total = EntityScores(*counts.sum(axis=0).astype(int).tolist())
    by_type = scores_by_type(gold, predicted, scheme)
    right = [
        [a == b for a, b in zip(*pair, strict=True)] for pair in zip(gold, predicted, strict=True)
    ]
    flat = [own for sentence in right for own in sentence]
    items = _items({"sentence right": [float(all(own)) for own in right]})
    items |= _items(dict(zip(COUNTS, counts.T.tolist(), strict=True)))
    return tracker.finish(
        predictor.identity,
        scores={
            "F1": total.f1,
            "precision": total.precision,
            "recall": total.recall,
            "tag accuracy": sum(flat) / len(flat),
            **{f"F1 {kind}": scores.f1 for kind, scores in by_type.items()},
        },
        per_item=items,
        counts={"sentences": len(gold), "tokens": len(flat), "entities": total.gold},
        settings={"scheme": scheme, "crf": model.crf is not None},
    )


def evaluate_qa(task: EvalTask, predictor: Predictor, *, data: Path, seed: int = 0) -> Evaluation:
    """Answer the questions of a file: SQuAD's exact match and F1.

    If some questions have no answer, both are computed over each of the two groups, too.
    """
    if predictor.task != "qa":
        raise EvaluationError(f"{predictor.opened.name} does not answer questions.")
    if task.columns != TaskColumns():
        raise EvaluationError(
            f"{task.name}: questions have the columns question, context and answers; remove the "
            "table [columns] from the task, and rename the columns of the file."
        )
    tracker = EvaluationTracker(task, data, seed=seed)
    questions, ids = list[Question](), list[str]()
    for path, file in zip((task.path, *task.more), tracker.files, strict=True):
        own = read_questions(file)
        prefix = f"{path.as_posix()}: " if task.more else ""  # two files may use the same id
        questions += own
        ids += [f"{prefix}{question.question_id}" for question in own]
    found = predictor.answer([(question.text, question.context) for question in questions])
    tracker.lap("predict")
    accepted = [[answer.text for answer in question.answers] for question in questions]
    pairs = list(zip(found, accepted, strict=True))
    exact = np.array([exact_match(answer.text, texts) for answer, texts in pairs])
    overlap = np.array([answer_f1(answer.text, texts) for answer, texts in pairs])
    answerable = np.array([bool(texts) for texts in accepted])
    scores = {"F1": overlap.mean(), "exact match": exact.mean()}
    for name, rows in (("with answer", answerable), ("without answer", ~answerable)):
        if rows.any() and not rows.all():
            scores[f"F1 {name}"] = overlap[rows].mean()
            scores[f"exact match {name}"] = exact[rows].mean()
    threshold = predictor.no_answer_threshold  # may be infinite; JSON has no infinite numbers
    shown = threshold if math.isfinite(threshold) else str(threshold)
    return tracker.finish(
        predictor.identity,
        scores={name: float(value) for name, value in scores.items()},
        per_item={
            "F1": dict(zip(ids, overlap.tolist(), strict=True)),
            "exact match": dict(zip(ids, exact.tolist(), strict=True)),
        },
        counts={
            "questions": len(questions),
            "questions with answer": int(answerable.sum()),
            "answers given": sum(bool(answer.text) for answer in found),
        },
        settings={"no_answer_threshold": shown},
    )


def _of_classes(
    model: SequenceClassifier, logits: Vectors, truth: NDArray[np.generic]
) -> tuple[Scores, PerItem]:
    table = confusion(predicted := logits.argmax(axis=1), truth, len(model.labels))
    right = (predicted == truth).astype(float)

    scores = {
        "accuracy": float(accuracy(table)),
        "macro F1": float(macro_f1(table)),
        "Matthews": float(matthews(table)),
        "ECE": calibration_error(logits, truth, "class", model.temperature),
        "ECE at temperature 1": calibration_error(logits, truth, "class", 1.0),
    }
    # The stored number of a class is its index in the sorted names of the classes. Two models with
    # the same classes in different orders then store the same numbers.
    places = np.argsort(np.argsort(model.labels))
    classes = zip(CLASSES, (places[truth].tolist(), places[predicted].tolist()), strict=True)
    return scores, _items({"accuracy": right.tolist(), **dict(classes)})


def _of_label_sets(
    model: SequenceClassifier, logits: Vectors, gold: NDArray[np.generic]
) -> tuple[Scores, PerItem]:
    truth = gold.astype(np.float64)
    chances = probabilities(logits, "several", model.temperature)
    predicted = (chances >= model.threshold).astype(float)
    counts = [(truth * predicted).sum(1), predicted.sum(1), truth.sum(1)]
    whole = (predicted == truth).all(axis=1).astype(float)

    scores = {
        "F1": float(f1(*(own.sum() for own in counts))),
        "accuracy": float(whole.mean()),
        "ECE": calibration_error(logits, truth, "several", model.temperature),
        "ECE at temperature 1": calibration_error(logits, truth, "several", 1.0),
    }
    sums = dict(zip(COUNTS, (own.tolist() for own in counts), strict=True))
    return scores, _items({"accuracy": whole.tolist(), **sums})


def _of_numbers(predicted: Sequence[float], rows: Sequence[LabelledText]) -> tuple[Scores, PerItem]:
    gold = [float(row.label) for row in rows if isinstance(row.label, float)]
    scores = {"spearman": spearman(predicted, gold), "pearson": pearson(predicted, gold)}
    return scores, _items({"predicted": predicted, "gold": gold})


def _items(values: Mapping[str, Sequence[float]]) -> PerItem:
    return {
        name: {str(n): value for n, value in enumerate(column)} for name, column in values.items()
    }
