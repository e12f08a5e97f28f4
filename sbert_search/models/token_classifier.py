"""Models that give logits for each token of a text: token classifiers, and question answerers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.models.encoder.encoder import Encoder, norm_of
from sbert_search.models.encoder.layouts import LAYOUTS
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.head_model import HeadModel, start_encoder, with_pooler
from sbert_search.models.heads import SEQUENCE_HEADS
from sbert_search.models.loading.folder import ModelFolder
from sbert_search.models.side_file import SideFile, read_side_tensors, write_side_tensors
from sbert_search.models.token_heads import LinearChainCrf, fill_fresh
from sbert_search.tag_schemes import Scheme, detect_scheme, split_tag
from sbert_search.text.tokens.tokenizer import TextTokenizer


class PerTokenModel(HeadModel):
    """An encoder without a pooler and a linear layer, which gives logits for each token.

    Heads with a norm, such as ModernBERT's, have the other layers of `SequenceHead` before it.
    """

    OUT: ClassVar[str]  # published name of the linear layer in heads without a norm

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        *,
        labels: Sequence[str],
        segments: bool = True,
        side: SideFile | None = None,
    ) -> None:
        self.side = SideFile() if side is None else side
        encoder = with_pooler(encoder, False)
        super().__init__(encoder, tokenizer, labels=labels, segments=segments, side=self.side)
        config, self.layout = encoder.config, SEQUENCE_HEADS[encoder.config.layout]
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.inner = nn.Sequential()  # layers before ``out``, in a head with a norm
        if self.layout.norm is not None:
            dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
            fill_fresh(dense, config)
            self.inner = nn.Sequential(
                dense, self.layout.activation(), norm_of(config, config.hidden_size)
            )
        self.out = nn.Linear(config.hidden_size, len(self.labels))
        fill_fresh(self.out, config)

    @property
    def needs_only_starts(self) -> bool:
        """Whether texts are found by `PackedTokens.starts` alone; see `Encoder`."""
        return self.encoder.needs_only_starts

    def forward(self, tokens: PackedTokens, rows: Tensor | None = None) -> Tensor:
        """Compute logits, float32 (n, labels), of the tokens ``rows``, int64 (n,); None: all."""
        return self.classify(self.states(tokens, rows))

    def states(self, tokens: PackedTokens, rows: Tensor | None = None) -> Tensor:
        """Compute the hidden states that `classify` reads, float (n, hidden)."""
        states: Tensor = self.encoder(tokens, rows=rows).hidden_states
        return states

    def classify(self, states: Tensor) -> Tensor:
        """Compute logits, float32 (n, labels), from hidden states (n, hidden)."""
        logits: Tensor = self.out(self.inner(self.dropout(states).to(self.out.weight.dtype)))
        return logits

    def _layers(self) -> dict[str, nn.Module]:
        _, out = self._published(self.encoder.config.layout)
        layers: dict[str, nn.Module] = {out: self.out}
        if self.layout.dense is not None and self.layout.norm is not None:
            dense, _, norm = self.inner
            layers |= {self.layout.dense: dense, self.layout.norm: norm}
        return layers

    @classmethod
    def _published(cls, layout: str) -> tuple[str, str]:
        if layout not in LAYOUTS:
            return "", cls.OUT
        head = SEQUENCE_HEADS[layout]
        out = cls.OUT if head.norm is None else head.out
        return LAYOUTS[layout].architecture.removesuffix("Model") + cls.TASK, out

    @classmethod
    def start(
        cls,
        path: str | Path,
        *,
        labels: Sequence[str],
        max_len: int | None = None,
        side: SideFile | None = None,
        random_weights: bool = False,
    ) -> Self:
        """Put a new last layer on the encoder of a model, as `SequenceClassifier.start` does."""
        encoder, tokenizer = start_encoder(path, max_len, random_weights=random_weights)
        return cls(encoder, tokenizer, labels=labels, side=side)


class TokenClassifier(PerTokenModel):
    """A classifier of tokens: the label of a word is the label of its first token."""

    TASK, OUT = "ForTokenClassification", "classifier"

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        *,
        labels: Sequence[str],
        segments: bool = True,
        side: SideFile | None = None,
    ) -> None:
        super().__init__(encoder, tokenizer, labels=labels, segments=segments, side=side)
        # None: the labels do not mark entities.
        self.scheme: Scheme | None = self.side.scheme or _scheme(self.labels)
        # None: the label of each word is chosen without regard to its neighbours.
        self.crf = LinearChainCrf(self.labels, self.scheme) if self.side.crf else None

    def decode(self, emissions: Tensor | NDArray[np.float32]) -> list[int]:
        """Return the label, as an index, of each word of one text from logits (words, labels)."""
        if self.crf is not None:
            return self.crf.decode(emissions)
        chosen: list[int] = emissions.argmax(-1).tolist()
        return chosen

    def save(self, path: str | Path) -> None:
        """Write a folder as `HeadModel.save` does, and the CRF to a further file in it."""
        super().save(path)
        if self.crf is not None:
            write_side_tensors(Path(path), self.crf.state_dict(prefix="crf."))

    def _side(self) -> SideFile:
        return SideFile(temperature=self.temperature, scheme=self.scheme, crf=self.crf is not None)

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Self:
        """Load a model as `load` does, from a folder that `read_folder` has read."""
        model = super().from_folder(folder)
        if model.crf is not None:
            shapes = {f"crf.{n}": tuple(t.shape) for n, t in model.crf.state_dict().items()}
            tensors = read_side_tensors(folder.path, shapes)
            model.crf.load_state_dict({n.removeprefix("crf."): t for n, t in tensors.items()})
        return model


def _scheme(labels: Sequence[str]) -> Scheme | None:
    try:
        prefixes = [split_tag(label)[0] for label in labels]
    except ValueError:
        return None
    return detect_scheme(labels) if "B" in prefixes or "U" in prefixes else None


_LABELS = ("LABEL_0", "LABEL_1")  # the names that transformers gives to start and end


class QuestionAnswerer(PerTokenModel):
    """Gives each token of a question and its context a logit as start and as end of the answer.

    If there is no answer, start and end are the first token of the input, such as [CLS]. This is
    the case if the score of that span, minus the score of the best span, is larger than
    ``no_answer_threshold``.
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
    """A range of tokens, scored by the start logit of ``first`` plus the end logit of ``last``."""

    score: float
    first: int
    last: int


def best_spans(
    starts: NDArray[np.float32], ends: NDArray[np.float32], *, n: int = 20, max_tokens: int = 30
) -> list[Span]:
    """Return the spans with the highest scores, best first.

    ``starts`` and ``ends`` are logits of each token as the first and last of the span, float
    (tokens,). Of spans with equal scores, the span that begins earlier comes first.
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
