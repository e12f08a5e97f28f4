"""Tokenise labelled texts, and compute logits and metrics of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from sbert_search.base.progress import warn
from sbert_search.errors import CorpusError, TrainingError
from sbert_search.evaluate.metrics.heads import (
    accuracy,
    confusion,
    f1,
    macro_f1,
    macro_f1_of,
    matthews,
)
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.records import LabelledText
from sbert_search.text.labelled.texts import LabelKind
from sbert_search.text.tokens.batching import TOKENS_AT_ONCE, token_batches
from sbert_search.train.data.token_table import TokenTable

_AT_ONCE = 4096  # texts tokenised at once


def encode_rows(model: SequenceClassifier, rows: Sequence[LabelledText]) -> TokenTable:
    """Tokenise rows; a warning says how many were truncated.

    Raises:
        CorpusError: Some rows are pairs, and some are single texts.
    """
    if len({row.text2 is None for row in rows}) > 1:
        single = next(row for row in rows if row.text2 is None)
        raise CorpusError(
            f"{single.source}: one text, while other rows have two; use files of one kind."
        )
    ids, types, n_long = list[NDArray[np.int32]](), list[NDArray[np.uint8]](), 0
    for start in range(0, len(rows), _AT_ONCE):
        encoded = model.encode([(row.text, row.text2) for row in rows[start : start + _AT_ONCE]])
        ids += [np.array(each, dtype=np.int32) for each in encoded.ids]
        types += [np.array(each, dtype=np.uint8) for each in encoded.types]
        n_long += int(np.count_nonzero(encoded.lost))
    if n_long:
        limit = model.tokenizer.max_len
        warn(f"{n_long:,} of {len(rows):,} rows are truncated to {limit} tokens.")
    has_types = model.gets_segment_ids and any(row.text2 is not None for row in rows[:1])
    return TokenTable.join(ids, types if has_types else None)


def targets_of(model: SequenceClassifier, rows: Sequence[LabelledText]) -> NDArray[np.generic]:
    """Return the targets of rows.

    Returns:
        If a row has one class, the index of this class, int64 (n,). If a row may have several
        classes, 1 for each of its classes and 0 for the others, float32 (n, labels). If the label
        of a row is a number, this number, float32 (n,).
    """
    if model.kind == "number":
        return np.array([row.label for row in rows], dtype=np.float32)
    number = {label: n for n, label in enumerate(model.labels)}
    if model.kind == "class":
        return np.array([number[str(row.label)] for row in rows], dtype=np.int64)
    targets = np.zeros((len(rows), len(number)), dtype=np.float32)
    for n, row in enumerate(rows):
        assert isinstance(row.label, tuple)
        targets[n, [number[name] for name in row.label]] = 1
    return targets


def check_targets(
    kind: LabelKind, rows: Sequence[LabelledText], targets: NDArray[np.generic]
) -> None:
    """Refuse targets that are all equal, from which nothing can be learned.

    Raises:
        TrainingError: All targets are equal.
    """
    if len(np.unique(targets, axis=0)) < 2:
        what = "number" if kind == "number" else "label"
        raise TrainingError(
            f"All {len(rows):,} rows from {rows[0].source} to {rows[-1].source} have the {what} "
            f"{rows[0].label!r}. Add rows with another {what}."
        )


def predict_logits(model: SequenceClassifier, table: TokenTable) -> NDArray[np.float32]:
    """Compute the logits of all rows of a table in fp32, float32 (rows, labels)."""
    logits = np.empty((len(table.lengths), len(model.labels)), dtype=np.float32)
    device = model.out.weight.device
    with torch.no_grad():
        for rows in token_batches(table.lengths, TOKENS_AT_ONCE):
            logits[rows] = model(table.pack(rows).to(device)).float().cpu().numpy()
    return logits


def dev_metrics(
    kind: LabelKind, logits: NDArray[np.float32], gold: NDArray[np.generic]
) -> dict[str, float]:
    """Compute metrics by name from logits (n, labels); ``kind`` is "class" or "several".

    All metrics are NaN if a logit is not finite.
    """
    if kind == "several":
        chosen, true = logits > 0, gold.astype(bool)
        matched = chosen & true
        sums = (matched.sum(axis=0), chosen.sum(axis=0), true.sum(axis=0))
        micro = f1(*(own.sum() for own in sums))
        found = {"micro_f1": float(micro), "macro_f1": float(macro_f1_of(*sums))}
    else:
        counts = confusion(logits.argmax(axis=1), gold, logits.shape[1])
        metrics = {"accuracy": accuracy, "macro_f1": macro_f1, "matthews": matthews}
        found = {name: float(metric(counts)) for name, metric in metrics.items()}
    return found if np.isfinite(logits).all() else dict.fromkeys(found, math.nan)
