"""Score trained task heads on test files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from task_heads_trials import Task

from sbert_search.heads.calibration import expected_calibration_error, probabilities
from sbert_search.heads.labelled_spans import read_questions, read_tagged_tokens
from sbert_search.heads.train_answerer import answer_metrics
from sbert_search.heads.training_rows import (
    dev_metrics,
    encode_rows,
    predict_logits,
    tag_metrics,
    targets_of,
)
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.token_classifier import QuestionAnswerer, TokenClassifier
from sbert_search.text.labelled.texts import read_labelled_texts

KNOWN_ARTICLES = "squad/dev_a.jsonl.gz"  # articles that training has seen


def score(task: Task, model: Path, files: Sequence[Path]) -> dict[str, float]:
    """Return the metrics of a model on the rows of all files together, by name."""
    if task.kind == "classify":
        return _classes(SequenceClassifier.load(model), files)
    if task.kind == "tag":
        rows = [row for file in files for row in read_tagged_tokens(file)]
        return tag_metrics(TokenClassifier.load(model), rows)
    seen = {row.title for row in read_questions(files[0].parents[1] / KNOWN_ARTICLES)}
    questions = [row for file in files for row in read_questions(file) if row.title not in seen]
    found = answer_metrics(QuestionAnswerer.load(model), questions)
    return {**found, "questions": len(questions)}


def _classes(model: SequenceClassifier, files: Sequence[Path]) -> dict[str, float]:
    """Return the metrics of classes, and the calibration error before and after the fit."""
    rows = [row for file in files for row in read_labelled_texts(file, labels=model.labels)]
    logits, gold = predict_logits(model, encode_rows(model, rows)), targets_of(model, rows)
    found = dev_metrics(model.kind, logits, gold)
    right = (logits.argmax(axis=1) == gold).astype(np.float64)
    for name, temperature in (("ece_before", 1.0), ("ece", model.temperature)):
        confidence = probabilities(logits, "class", temperature).max(axis=1)
        found[name] = expected_calibration_error(confidence, right)
    return found
