"""A model that marks the answer to a question in a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sbert_search.encoder.encoder import Encoder
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
