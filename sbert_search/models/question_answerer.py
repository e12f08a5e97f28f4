"""A model that marks the answer to a question in a text, and the choice of the best spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.side_file import SideFile
from sbert_search.models.token_classifier import PerTokenModel
from sbert_search.text.tokens.tokenizer import TextTokenizer

_LABELS = ("LABEL_0", "LABEL_1")  # the names that transformers gives to start and end


class QuestionAnswerer(PerTokenModel):
    """Gives each token of a question and its context a logit as start and as end of the answer.

    If there is no answer, start and end are the first token of the input, such as [CLS].

    Attributes:
        no_answer_threshold: The score of a span is the start logit of its first token plus the end
            logit of its last token. There is no answer if the score of the span of only the first
            token of the input, minus the score of the best span, is larger than this threshold.
    """

    TASK, OUT = "ForQuestionAnswering", "qa_outputs"

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        *,
        labels: Sequence[str] = _LABELS,
        segments: bool = True,
        side: SideFile | None = None,
    ) -> None:
        super().__init__(encoder, tokenizer, labels=labels, segments=segments, side=side)
        self.dropout.p = 0.0  # models for questions in transformers have no dropout before ``out``
        self.no_answer_threshold = self.side.no_answer_threshold

    def _side(self) -> SideFile:
        return replace(
            self.side,
            temperature=self.temperature,
            no_answer_threshold=self.no_answer_threshold,
        )


class Span(NamedTuple):
    """The tokens from index ``first`` to index ``last``.

    The score is the start logit of the first token plus the end logit of the last token.
    """

    score: float
    first: int
    last: int


def best_spans(
    starts: NDArray[np.float32], ends: NDArray[np.float32], *, n: int = 20, max_tokens: int = 30
) -> list[Span]:
    """Return the spans with the highest scores, best first.

    Of spans with equal scores, the span that begins earlier comes first.

    Args:
        starts: Logit of each token as the first of the span, float (tokens,).
        ends: Logit of each token as the last of the span, float (tokens,).
        n: Maximum number of spans.
        max_tokens: Maximum number of tokens of a span.
    """
    length = len(starts)
    if not length:
        return []
    scores = starts[:, None] + ends[None, :]
    gap = np.arange(length)[None, :] - np.arange(length)[:, None]
    scores = np.where((gap >= 0) & (gap < max_tokens), scores, -np.inf).ravel()
    lowest = -np.inf if n >= len(scores) else np.partition(scores, -n)[-n]
    order = np.flatnonzero(scores >= lowest)  # more than n spans if several scores equal `lowest`
    order = order[np.argsort(-scores[order], kind="stable")][:n]
    return [
        Span(float(scores[place]), *divmod(int(place), length))
        for place in order
        if np.isfinite(scores[place])
    ]
