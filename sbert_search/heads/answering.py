"""Choosing the best answer to a question from the logits of all windows of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.protocol import Vectors
from sbert_search.heads.results import TextAnswer
from sbert_search.models.question_answerer import QuestionAnswerer, best_spans
from sbert_search.text.tokens.windows import Window

Floats = NDArray[np.float64]


@dataclass(slots=True)
class AskedText:
    """A text in which a question is answered, and the logits of its windows, filled in later.

    Attributes:
        text: The text.
        windows: Overlapping parts of the text, each encoded together with the question.
        logits: Start and end logits of each window, by the index of the window: float32
            (1 + tokens of the text in the window, 2). The first row stands for "no answer".
    """

    text: str
    windows: Sequence[Window]
    logits: dict[int, Vectors] = field(default_factory=dict)


def rows_of(window: Window) -> list[int]:
    """Return the indices of the tokens whose logits `best_answer` needs.

    These tokens are the first token of the window, which stands for "no answer", and the tokens of
    the text.
    """
    return [0, *range(window.start, window.start + len(window.offsets))]


def best_answer(
    model: QuestionAnswerer, asked: AskedText, *, max_tokens: int, threshold: float
) -> TextAnswer:
    """Choose the span with the highest score among the spans of all windows, or "no answer".

    The score of a span is the start logit of its first token plus the end logit of its last token.
    The score of "no answer" is the lowest of its scores in the windows: a window without the answer
    rightly gives it a high score, even if another window contains the answer.

    Args:
        model: The model, whose temperature divides the logits for the probability.
        asked: A text with the logits of all its windows.
        max_tokens: Maximum number of tokens of an answer.
        threshold: There is no answer if the score of "no answer" exceeds the score of the best span
            by more than this threshold, or if that span is blank.
    """
    tables = [asked.logits[number] for number in range(len(asked.windows))]
    null = min(float(table[0].sum()) for table in tables)
    found = [
        (span.score, -number, span.first, span.last)
        for number, table in enumerate(tables)
        for span in best_spans(table[1:, 0], table[1:, 1], n=1, max_tokens=max_tokens)
    ]
    if not found:
        return TextAnswer("", 0, 0, 1.0, 0.0)  # the text has no tokens
    score, number, first, last = max(found)
    margin = score - null
    chance = _chance(tables, score, null, model.temperature)
    offsets = asked.windows[-number].offsets
    start, end = offsets[first][0], offsets[last][1]
    answer = asked.text[start:end].rstrip()  # tokens may begin or end with a blank
    end = start + len(answer)
    answer = answer.lstrip()
    if -margin > threshold or not answer:
        return TextAnswer("", 0, 0, _chance(tables, null, null, model.temperature), margin)
    return TextAnswer(answer, end - len(answer), end, chance, margin)


def _chance(tables: Sequence[Vectors], score: float, null: float, temperature: float) -> float:
    """Return the probability of a span: that of its start times that of its end.

    Both are softmax probabilities over the tokens of all windows and "no answer". "No answer"
    counts as one more start and one more end, each with the logit ``null / 2``.

    Args:
        tables: Logits of each window, as in `AskedText`.
        score: Score of the span; or ``null``, for the probability of "no answer".
        null: Score of "no answer".
        temperature: Divides the logits.
    """
    logs = 0.0
    for column in (0, 1):
        own = np.concatenate([table[1:, column] for table in tables]).astype(np.float64)
        logs += _log_sum(np.append(own, null / 2) / temperature)
    return float(np.exp(score / temperature - logs))


def _log_sum(values: Floats) -> float:
    top = float(values.max())  # subtracted before exp, which could overflow otherwise
    return top + float(np.log(np.exp(values - top).sum()))
