"""Labelled texts, tagged words and questions as token ids; their logits and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.base.device import to_device
from sbert_search.base.progress import warn
from sbert_search.declared import Bounds, check
from sbert_search.errors import TrainingError
from sbert_search.evaluate.metrics.classification import (
    accuracy,
    confusion,
    entity_scores,
    f1,
    macro_f1,
    macro_f1_of,
    matthews,
)
from sbert_search.heads.training import HeadInputs
from sbert_search.heads.windows import TRUNCATED, Window, encode_windows, encode_words, join_words
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.token_classifier import PerTokenModel, QuestionAnswerer, TokenClassifier
from sbert_search.tag_schemes import OUTSIDE
from sbert_search.text.labelled.records import LabelledText, Question, TaggedTokens
from sbert_search.text.labelled.texts import LabelKind, class_indices
from sbert_search.text.tokens.batching import TOKENS_AT_ONCE, token_batches
from sbert_search.train.data.token_table import TokenTable, outputs_of
from sbert_search.train.loop.objective import Rows

_AT_ONCE = 4096  # texts tokenised at once


def encode_rows(model: SequenceClassifier, rows: Sequence[LabelledText]) -> TokenTable:
    """Tokenise rows, all single texts or all pairs; a warning says how many were truncated."""
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
    """Return the targets of rows; a class that the model does not have is an error.

    One class: its index, int64 (n,). Several classes: 1 for each of them and else 0, float32 (n,
    labels). A number: float32 (n,).
    """
    if model.kind == "number":
        return np.array([row.label for row in rows], dtype=np.float32)
    classes = class_indices(rows, model.labels)
    if model.kind == "class":
        return np.array([own[0] for own in classes], dtype=np.int64)
    targets = np.zeros((len(rows), len(model.labels)), dtype=np.float32)
    for row, own in zip(targets, classes, strict=True):
        row[own] = 1
    return targets


def check_targets(
    kind: LabelKind, rows: Sequence[LabelledText], targets: NDArray[np.generic]
) -> None:
    """Refuse targets that are all equal, from which nothing can be learned."""
    if len(np.unique(targets, axis=0)) < 2:
        what = "number" if kind == "number" else "label"
        raise TrainingError(
            f"All {len(rows):,} rows from {rows[0].source} to {rows[-1].source} have the {what} "
            f"{rows[0].label!r}. Add rows with another {what}."
        )


def predict_logits(model: SequenceClassifier, table: TokenTable) -> NDArray[np.float32]:
    """Compute the logits of all rows of a table in fp32, float32 (rows, labels)."""
    return outputs_of(model, table, len(model.labels))


@torch.no_grad()
def token_logits(
    model: PerTokenModel,
    table: TokenTable,
    take: Callable[[Rows], HeadInputs],
    n_logits: NDArray[np.int64],
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the number of each row and its logits in fp32, float32 (``n_logits`` of it, labels)."""
    device = model.out.weight.device
    for part in token_batches(table.lengths, TOKENS_AT_ONCE):
        logits = to_device(take(part), device).logits(model).float().cpu().numpy()
        ends = np.cumsum(n_logits[part])
        yield from zip(part.tolist(), np.split(logits, ends[:-1]), strict=True)


def dev_metrics(
    kind: LabelKind, logits: NDArray[np.float32], gold: NDArray[np.generic]
) -> dict[str, float]:
    """Compute metrics of classes from logits (n, labels); all are NaN if a logit is not finite."""
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


@dataclass(frozen=True, eq=False, slots=True)
class WordRows:
    """Tokenised sentences, with the words that have a token."""

    table: TokenTable
    first: list[NDArray[np.int64]]  # index in its sentence's tokens of each word's first token
    words: list[NDArray[np.int64]]  # index of each of these words among all words of its sentence

    @classmethod
    def of(cls, model: TokenClassifier, rows: Sequence[TaggedTokens]) -> WordRows:
        """Tokenise sentences; a warning says how many words have no token."""
        joined = [join_words(row.tokens) for row in rows]
        texts, spans = [text for text, _ in joined], [span for _, span in joined]
        token_ids, first_tokens = encode_words(model.tokenizer, texts, spans)
        places = [np.array(first, dtype=np.int64) for first in first_tokens]
        words = [np.flatnonzero(place != TRUNCATED) for place in places]
        if lost := sum(map(len, places)) - sum(map(len, words)):
            warn(
                f"{lost:,} words have no token: they are behind the first "
                f"{model.tokenizer.max_len} tokens of their text, or the tokenizer drops them."
            )
        ids = [np.array(each, dtype=np.int32) for each in token_ids]
        first = [place[word] for place, word in zip(places, words, strict=True)]
        return cls(TokenTable.join(ids), first, words)

    def take(self, rows: Rows) -> HeadInputs:
        """Make the input of the model for some sentences."""
        tokens = self.table.pack(rows)
        starts = np.cumsum([0, *tokens.lengths])
        places = [
            self.first[row] + start for row, start in zip(rows.tolist(), starts, strict=False)
        ]
        return HeadInputs(tokens, torch.from_numpy(np.concatenate(places)))


def predict_emissions(model: TokenClassifier, rows: WordRows) -> list[NDArray[np.float32]]:
    """Compute the emissions of the words of each sentence in fp32, float32 (words, labels)."""
    found = [np.zeros((0, len(model.labels)), dtype=np.float32)] * len(rows.first)
    n_words = np.array([len(words) for words in rows.words])
    for row, emissions in token_logits(model, rows.table, rows.take, n_words):
        found[row] = emissions
    return found


def tag_metrics(
    model: TokenClassifier, gold: Sequence[TaggedTokens], rows: WordRows | None = None
) -> dict[str, float]:
    """Compute F1, precision and recall of the entities of sentences; NaN if a logit is not finite.

    A word without a token is predicted as outside. ``rows`` None: this function tokenises them.
    """
    rows = WordRows.of(model, gold) if rows is None else rows
    predicted = []
    found = predict_emissions(model, rows)
    for row, words, emissions in zip(gold, rows.words, found, strict=True):
        own = [OUTSIDE] * len(row.tags)
        for word, label in zip(words.tolist(), model.decode(emissions), strict=True):
            own[word] = model.labels[label]
        predicted.append(own)
    scores = entity_scores([row.tags for row in gold], predicted, model.scheme or "bio")
    metrics = {"f1": scores.f1, "precision": scores.precision, "recall": scores.recall}
    finite = all(np.isfinite(emissions).all() for emissions in found)
    return metrics if finite else dict.fromkeys(metrics, math.nan)


_FILL = -1e4  # logit of the padding after a window; finite, since a loss subtracts two of them


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowConfig:
    """How a question and a long context are cut into windows."""

    overlap: Annotated[int, Bounds(0)] = 128  # tokens that neighbouring windows of a context share
    max_question: Annotated[int, Bounds(1)] = 64  # maximum tokens of a question
    max_answer: Annotated[int, Bounds(1)] = 30  # maximum tokens of a predicted answer

    def __post_init__(self) -> None:
        check(self, table="windows.")


@dataclass(frozen=True, eq=False, slots=True)
class WindowRows:
    """The windows of questions."""

    table: TokenTable
    windows: list[Window]  # without their token ids and segment ids
    question_ids: list[int]  # index of the question of each window

    @classmethod
    def of(
        cls, model: QuestionAnswerer, questions: Sequence[Question], config: WindowConfig
    ) -> WindowRows:
        """Tokenise questions with their contexts."""
        windows, owners = list[Window](), list[int]()
        for n, question in enumerate(questions):
            own = encode_windows(
                model.tokenizer,
                question.text,
                question.context,
                overlap=config.overlap,
                max_question=config.max_question,
            )
            windows += own
            owners += [n] * len(own)
        ids = [np.array(window.ids, dtype=np.int32) for window in windows]
        types = [np.array(window.types, dtype=np.uint8) for window in windows]
        table = TokenTable.join(ids, types if model.gets_segment_ids else None)
        light = [replace(window, ids=[], types=[]) for window in windows]
        return cls(table, light, owners)

    def targets(self, questions: Sequence[Question]) -> NDArray[np.int64]:
        """Return the indices of the first and last token of the answer in each window, (n, 2).

        Both are 0 for a window without the whole answer. The first accepted answer counts.
        """
        found = np.zeros((len(self.windows), 2), dtype=np.int64)
        for row, (window, owner) in enumerate(zip(self.windows, self.question_ids, strict=True)):
            if not questions[owner].answers:
                continue
            answer = questions[owner].answers[0]
            # No token covers a blank at an end of the answer.
            start = answer.start + len(answer.text) - len(answer.text.lstrip())
            end = answer.start + len(answer.text.rstrip())
            inside = [n for n, (a, b) in enumerate(window.offsets) if a < end and b > start]
            whole = window.offsets and window.offsets[0][0] <= start < end <= window.offsets[-1][1]
            if inside and whole:
                found[row] = window.start + inside[0], window.start + inside[-1]
        return found


def window_logits(inputs: HeadInputs, model: nn.Module) -> Tensor:
    """Compute logits of starts and of ends of windows, float32 (2, windows, longest)."""
    assert inputs.tokens is not None
    return inputs.tokens.pad(inputs.logits(model).float(), _FILL).permute(2, 0, 1)
