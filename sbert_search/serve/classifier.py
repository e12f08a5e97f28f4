"""A classifier of a server; a queue collects the texts of all requests and computes batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.protocol import Vectors
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.serve.access import ServerLimits
from sbert_search.serve.metrics import Metrics
from sbert_search.serve.queue import Work, WorkQueue
from sbert_search.text.tokens.tokenizer import EncodedPairs

Text = str | tuple[str, str]


class Classifier(Protocol):
    """A model that gives texts, or pairs of texts, logits; a `Predictor` that classifies is one."""

    labels: tuple[str, ...]
    max_len: int

    @property
    def identity(self) -> ModelIdentity:
        """Identity of the model."""

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of one forward pass."""

    def tokenize(self, texts: Sequence[Text], /) -> EncodedPairs:
        """Turn texts into token ids; a mixture of texts and pairs is a CorpusError."""

    def logits_of_tokens(self, encoded: EncodedPairs, /) -> Vectors:
        """Compute logits, float32 (n, labels), in one forward pass."""

    def probabilities(self, logits: Vectors, /) -> NDArray[np.float64]:
        """Turn logits (n, labels) into probabilities."""


@dataclass(eq=False)
class ServedClassifier:
    """A classifier with a queue."""

    name: str  # in answers
    classifier: Classifier  # only the thread of the queue computes with it
    limits: ServerLimits
    metrics: Metrics
    queue: WorkQueue[tuple[list[int], list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(
            f"classify {self.name}",
            self._compute,
            batch_tokens=lambda: self.classifier.batch_tokens,
            limits=self.limits,
            metrics=self.metrics,
        )

    @property
    def identity(self) -> ModelIdentity:
        """Identity of the model."""
        return self.classifier.identity

    async def logits(self, texts: Sequence[Text], work: Work, *, cuts: bool) -> Vectors:
        """Compute logits, float32 (n, labels), and add the cost to ``work``.

        A text that is too long is truncated or, without ``cuts``, refused.
        """
        encoded, done = await self.queue.encode(
            partial(self.classifier.tokenize, texts),
            lambda encoded: list(zip(encoded.ids, encoded.types, strict=True)),
            work,
            n_chars=sum(len(one) if isinstance(one, str) else sum(map(len, one)) for one in texts),
            n_special=3 * len(texts),
            max_len=None if cuts else self.classifier.max_len,
            param="inputs",
        )
        work.add(done, encoded.lengths, encoded.lost, self.metrics)
        return done.rows

    def _compute(self, items: Sequence[tuple[list[int], list[int]]]) -> Vectors:
        lost = np.zeros(len(items), np.int32)
        encoded = EncodedPairs([ids for ids, _ in items], [types for _, types in items], lost)
        return self.classifier.logits_of_tokens(encoded)
