"""Find the answers of questions over all their windows, and score them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sbert_search.evaluate.metrics.heads import answer_f1, exact_match
from sbert_search.heads.training.answer_windows import WindowConfig, WindowRows
from sbert_search.models.question_answerer import QuestionAnswerer, best_spans
from sbert_search.records import Question
from sbert_search.text.tokens.batching import TOKENS_AT_ONCE, token_batches
from sbert_search.text.tokens.windows import Window

ALWAYS = 1e6  # threshold of "no answer" with which every question is answered


class Found(NamedTuple):
    """The best span of a question.

    Attributes:
        text: Its text.
        score: Sum of the logits of its first and its last token.
        null_score: Score of "no answer": the smallest sum of both logits of the first token of a
            window, over all windows.
    """

    text: str
    score: float
    null_score: float


def find_answers(
    model: QuestionAnswerer,
    questions: Sequence[Question],
    rows: WindowRows,
    config: WindowConfig,
) -> list[Found]:
    """Find the best span of each question over all its windows, in fp32.

    Args:
        model: The model, in evaluation mode.
        questions: The questions.
        rows: The windows of these questions.
        config: Gives the maximum tokens of an answer.

    Returns:
        An answer for each question. All scores are NaN if a logit is not finite.
    """
    best = [Found("", -np.inf, np.inf)] * len(questions)
    device = model.out.weight.device
    with torch.no_grad():
        for part in token_batches(rows.table.lengths, TOKENS_AT_ONCE):
            logits = model(rows.table.pack(part).to(device)).float().cpu().numpy()
            if not np.isfinite(logits).all():
                return [Found("", math.nan, math.nan)] * len(questions)
            ends = np.cumsum(rows.table.lengths[part])
            for row, own in zip(part.tolist(), np.split(logits, ends[:-1]), strict=True):
                window, owner = rows.windows[row], rows.question_ids[row]
                found = _best_of_window(own, window, questions[owner].context, config)
                null_score = min(found.null_score, best[owner].null_score)
                kept = max(found, best[owner], key=lambda each: each.score)
                best[owner] = kept._replace(null_score=null_score)
    return best


def _best_of_window(
    logits: NDArray[np.float32], window: Window, context: str, config: WindowConfig
) -> Found:
    inside = logits[window.start : window.start + len(window.offsets)]
    spans = best_spans(inside[:, 0], inside[:, 1], n=1, max_tokens=config.max_answer)
    null_score = float(logits[0].sum())
    if not spans:
        return Found("", -np.inf, null_score)
    start, end = window.offsets[spans[0].first][0], window.offsets[spans[0].last][1]
    return Found(context[start:end].strip(), spans[0].score, null_score)


def best_threshold(
    margins: Sequence[float], answered: Sequence[float], none: Sequence[float]
) -> float:
    """Return the threshold of "no answer" with the highest sum of scores.

    Args:
        margins: For each question, the score of "no answer" minus that of the best span. The
            question is answered if this margin is at most the threshold.
        answered: Score of each question if it is answered.
        none: Score of each question if it is not answered.

    Returns:
        `ALWAYS` if nothing is gained by leaving questions unanswered.

    Raises:
        ValueError: A margin is NaN.
    """
    if np.isnan(margins).any():
        raise ValueError("A margin is NaN, so that it has no place among the others.")
    order = np.argsort(margins, kind="stable")
    ordered, gains = np.asarray(margins)[order], (np.asarray(answered) - np.asarray(none))[order]
    totals = np.concatenate([[0.0], np.cumsum(gains)])
    totals[1:-1][ordered[1:] == ordered[:-1]] = -np.inf  # equal margins are not separated
    count = int(totals.argmax())
    if totals[-1] >= totals[count]:
        return ALWAYS
    above = float(ordered[count])
    if count == 0:
        return min(above - 1.0, math.nextafter(above, -math.inf))
    below = float(ordered[count - 1])
    middle = below / 2 + above / 2
    return middle if below < middle < above else below  # between neighbouring floats there is none


def score_answers(
    found: Sequence[Found], questions: Sequence[Question], threshold: float | None = None
) -> tuple[float, float, float]:
    """Return the mean F1, the mean exact match, and the threshold of "no answer" that they use.

    Args:
        found: The best span of each question.
        questions: The questions with their accepted answers.
        threshold: Threshold of "no answer"; None: the one with the highest F1, or `ALWAYS` if all
            questions have an answer.

    Returns:
        NaN, NaN and `ALWAYS` if a score is NaN.
    """
    golds = [[answer.text for answer in question.answers] for question in questions]
    f1 = [answer_f1(each.text, gold) for each, gold in zip(found, golds, strict=True)]
    none = [answer_f1("", gold) for gold in golds]
    margins = [each.null_score - each.score for each in found]
    if np.isnan(margins).any():
        return math.nan, math.nan, ALWAYS
    if threshold is None:
        threshold = ALWAYS if all(golds) else best_threshold(margins, f1, none)
    chosen = [each.text if m <= threshold else "" for each, m in zip(found, margins, strict=True)]
    exact = [exact_match(text, gold) for text, gold in zip(chosen, golds, strict=True)]
    values = [answer_f1(text, gold) for text, gold in zip(chosen, golds, strict=True)]
    return float(np.mean(values)), float(np.mean(exact)), threshold


def answer_metrics(model: QuestionAnswerer, questions: Sequence[Question]) -> dict[str, float]:
    """Compute F1 and exact match of the answers, with the windows and threshold of the model."""
    side = model.side
    config = WindowConfig(
        overlap=side.overlap, max_question=side.max_question, max_answer=side.max_answer
    )
    rows = WindowRows.of(model, questions, config)
    found = find_answers(model, questions, rows, config)
    f1, exact, _ = score_answers(found, questions, model.no_answer_threshold)
    return {"f1": f1, "exact_match": exact}
