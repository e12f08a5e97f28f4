"""Cut questions and their contexts into windows that fit a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sbert_search.errors import ConfigError
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.question_answerer import QuestionAnswerer
from sbert_search.records import Question
from sbert_search.text.tokens.windows import Window, encode_windows
from sbert_search.train.data.token_table import TokenTable

_FILL = -1e4  # logit of the padding after a window; finite, since a loss subtracts two of them


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowConfig:
    """How a question and a long context are cut into windows."""

    overlap: int = 128  # tokens that neighbouring windows of a context share
    max_question: int = 64  # maximum tokens of a question
    max_answer: int = 30  # maximum tokens of a predicted answer

    def __post_init__(self) -> None:
        for name, least in (("overlap", 0), ("max_question", 1), ("max_answer", 1)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"windows.{name} is {getattr(self, name)}; it must be at least {least}."
                )


@dataclass(frozen=True, eq=False, slots=True)
class WindowRows:
    """The windows of questions.

    Attributes:
        table: Token ids of the windows.
        windows: The windows, without their token ids and segment ids.
        question_ids: Index of the question of each window, (windows,).
    """

    table: TokenTable
    windows: list[Window]
    question_ids: list[int]

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
        """Return, for each window, the indices of the first and last token of the answer.

        Both are 0 for a window without the whole answer. If a question has several accepted
        answers, the first one is used.
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


@dataclass(frozen=True, eq=False, slots=True)
class WindowInputs:
    """Some windows, with the hidden states of their tokens if the encoder is frozen.

    Attributes:
        tokens: The tokens of the windows.
        states: Hidden states of these tokens, float32 (tokens, hidden); None: the encoder computes
            them.
    """

    tokens: PackedTokens
    states: Tensor | None

    def to(self, device: torch.device) -> WindowInputs:
        """Copy the tensors to a device."""
        states = None if self.states is None else self.states.to(device)
        return WindowInputs(self.tokens.to(device), states)

    def logits(self, model: QuestionAnswerer) -> Tensor:
        """Compute logits of starts and of ends, float32 (2, windows, longest)."""
        flat = model(self.tokens) if self.states is None else model.classify(self.states)
        return self.tokens.pad(flat.float(), _FILL).permute(2, 0, 1)
