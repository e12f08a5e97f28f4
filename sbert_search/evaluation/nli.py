"""Evaluate a cross-encoder on natural language inference, by accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sbert_search.config import unknown_name
from sbert_search.errors import EvaluationError
from sbert_search.evaluation.manifest import Evaluation, Stopwatch, make_manifest
from sbert_search.evaluation.tasks import EvalTask, check_files
from sbert_search.records import TextPair
from sbert_search.search.rerankers import Reranker
from sbert_search.text.labelled.pairs import read_pairs

NO_LABEL = "-"  # SNLI's label of pairs on which the annotators did not agree


def evaluate_nli(task: EvalTask, model: Reranker, *, data: Path, seed: int = 0) -> Evaluation:
    """Classify the pairs of a file and compute the accuracy.

    Args:
        task: A task whose path is a file of pairs with labels; pairs labelled ``-`` are skipped.
        model: A cross-encoder whose classes have the names of the labels; case is ignored.
        data: Folder that the task's path is relative to.
        seed: Seed of the interval of the main metric; the scores have no random part.

    Returns:
        ``accuracy`` over the pairs, and ``balanced``, the mean of the per-label accuracies.

    Raises:
        CorpusError: The pairs cannot be read, or a pair has no label.
        EvaluationError: The file is absent, its hash is not the one in the task, a label is not a
            class of the model, all pairs are labelled ``-``, or a logit is not finite.
    """
    clock = Stopwatch()
    hashes = check_files(task, data, [data / task.path])
    classes = [label.lower() for label in model.labels]
    pairs, n_left_out = _labelled(task, data, classes)
    scores = model.predict([(pair.text1, pair.text2) for pair, _ in pairs.values()])
    clock.lap("score")
    if not (finite := np.isfinite(scores).all(axis=1)).all():
        (first, _) = [*pairs.values()][int(finite.argmin())]
        raise EvaluationError(
            f"The model has no finite logits for {int((~finite).sum()):,} of {len(pairs):,} pairs, "
            f"the first at {first.source}; check the model, or use --precision fp32."
        )
    predicted = [classes[index] for index in scores.argmax(axis=1)]
    gold = [label for _, label in pairs.values()]
    right = [float(a == b) for a, b in zip(predicted, gold, strict=True)]
    by_label = {
        label: [value for value, own in zip(right, gold, strict=True) if own == label]
        for label in sorted(set(gold))
    }
    return Evaluation(
        task=task,
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
        manifest=make_manifest(
            data=hashes, model=model.identity, settings={}, seed=seed, clock=clock
        ),
    )


def _labelled(
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
