"""Models that read a text, or a pair together, and give a score or a logit per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.config import unknown_name
from sbert_search.errors import CorpusError, ModelError
from sbert_search.models.encoder.encoder import Encoder, norm_of
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.head_model import HeadModel, start_encoder, with_pooler
from sbert_search.models.heads import (
    AT_ONCE,
    LINEAR_RANGES,
    SEQUENCE_HEADS,
    activation_path,
    make_activation,
    pool,
)
from sbert_search.models.loading.folder import ModelFolder, read_folder
from sbert_search.models.loading.modules import pooling_modes
from sbert_search.models.loading.native_support import (
    pair_activation,
    why_no_native_pairs,
)
from sbert_search.models.side_file import Pooling, SideFile, read_side_file
from sbert_search.models.token_heads import fill_fresh
from sbert_search.text.labelled.texts import LabelKind
from sbert_search.text.tokens.tokenizer import EncodedPairs, TextTokenizer

PROBLEM_TYPES: Mapping[LabelKind, str] = {
    "class": "single_label_classification",
    "several": "multi_label_classification",
    "number": "regression",
}
"""Value of ``problem_type`` in ``config.json``, by the kind of label that a model predicts."""


class SequenceClassifier(HeadModel):
    """A classifier or regressor of texts, or of pairs of texts.

    From a saved folder, transformers computes the same logits if ``pooling`` is "cls" and
    ``unit_length`` is false. Otherwise it computes other logits, since its classifiers always read
    the first token as it is.
    """

    TASK = "ForSequenceClassification"

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        *,
        labels: Sequence[str] = ("LABEL_0",),
        kind: LabelKind = "class",
        segments: bool = True,
        side: SideFile | None = None,
    ) -> None:
        side = SideFile() if side is None else side
        super().__init__(encoder, tokenizer, labels=labels, segments=segments, side=side)
        if kind not in get_args(LabelKind):
            raise ModelError(unknown_name(kind, kind, get_args(LabelKind), "kind of classifier"))
        hidden, self.layout = encoder.config.hidden_size, SEQUENCE_HEADS[encoder.config.layout]
        if self.layout.dense is None and encoder.pooler is None:
            raise ModelError(
                f"A classifier of the layout {encoder.config.layout!r} reads the pooler; make the "
                "encoder with pooler=True."
            )
        self.kind: LabelKind = kind  # one class, several (any number of) classes, or a number
        # How the states of the tokens become the state that the head reads.
        self.pooling: Pooling = side.pooling
        self.unit_length = side.unit_length  # whether that state is scaled to norm 1
        # The lowest probability at which a class is predicted, for the kind "several".
        self.threshold = side.threshold
        # None: the pooler.
        biased = self.layout.norm is None
        self.dense: nn.Linear | None = None
        if self.layout.dense is not None:
            self.dense = nn.Linear(hidden, hidden, bias=biased)
        self.dense_activation = self.layout.activation()
        self.norm = nn.Identity() if biased else norm_of(encoder.config, hidden)
        self.dropout = nn.Dropout(encoder.config.hidden_dropout)
        self.out = nn.Linear(hidden, len(self.labels))
        for layer in (self.dense, self.out):
            if layer is not None:
                fill_fresh(layer, encoder.config)

    @property
    def needs_only_starts(self) -> bool:
        """Whether texts are found by `PackedTokens.starts` alone; see `Encoder`."""
        return self.encoder.needs_only_starts and self.pooling in AT_ONCE

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Compute logits, float32 (batch, labels)."""
        return self.classify(self.states(tokens))

    def states(self, tokens: PackedTokens) -> Tensor:
        """Compute for each text the state that the head reads, float (batch, hidden)."""
        if self.pooling == "cls":
            states = self.encoder.first_states(tokens)
        else:
            states = pool(self.encoder(tokens).hidden_states, tokens, [self.pooling])
        return F.normalize(states, dim=-1) if self.unit_length else states

    def classify(self, states: Tensor) -> Tensor:
        """Compute logits, float32 (batch, labels), from the states of the texts."""
        if self.dense is None:
            pooled = self.encoder.pool_first(states)
        else:
            states = self.dropout(states)
            pooled = self.dense_activation(self.dense(states.to(self.dense.weight.dtype)))
            pooled = self.norm(pooled)
        logits: Tensor = self.out(self.dropout(pooled).to(self.out.weight.dtype))
        return logits

    @property
    def inner(self) -> nn.Linear:
        """The layer before ``out``: ``dense``, or the pooler of the encoder."""
        inner = self.encoder.pooler if self.dense is None else self.dense
        assert inner is not None
        return inner

    @torch.no_grad()
    def become_linear(self, layer: nn.Linear) -> None:
        """Set the weights of the head so that its logits are almost ``layer(states)``.

        The relative error of the logits is up to 1e-4. In transformers, a classifier has another
        linear layer and an activation before ``out``. This method sets that layer so that it only
        scales and shifts the states into a range in which the activation is almost linear. It sets
        ``out`` so that it undoes scale and shift and applies ``layer``. So transformers computes
        the same logits from the saved model. A head with a norm cannot be linear.
        """
        assert self.layout.norm is None
        scale, shift = LINEAR_RANGES[self.layout.activation]
        self.inner.weight.copy_(scale * torch.eye(len(self.inner.weight)))
        self.inner.bias.fill_(shift)
        self.out.weight.copy_(layer.weight / scale)
        self.out.bias.copy_(layer.bias - shift * layer.weight.sum(dim=1) / scale)

    def encode(self, texts: Sequence[tuple[str, str | None]]) -> EncodedPairs:
        """Turn texts into token ids; either all of them have a second text, or none has."""
        pairs = [(first, second) for first, second in texts if second is not None]
        if len(pairs) == len(texts):
            return self.tokenizer.encode_pairs(pairs)
        if pairs:
            raise CorpusError(
                f"{len(pairs):,} of {len(texts):,} texts have a second text; give one to all or "
                "to none."
            )
        ids, lost = self.tokenizer.encode([first for first, _ in texts])
        return EncodedPairs(ids, [[0] * len(each) for each in ids], lost)

    def segments(self, encoded: EncodedPairs) -> Sequence[Sequence[int]] | None:
        """Segment id of each token; None if the model gets no segment ids."""
        return encoded.types if self.gets_segment_ids else None

    def pack(self, encoded: EncodedPairs) -> PackedTokens:
        """Pack encoded texts or pairs into a batch, on the CPU."""
        return PackedTokens.from_lists(encoded.ids, self.segments(encoded))

    def _side(self) -> SideFile:
        return SideFile(
            pooling=self.pooling,
            unit_length=self.unit_length,
            temperature=self.temperature,
            threshold=self.threshold,
        )

    def _settings(self) -> dict[str, object]:
        pooling = "mean" if self.pooling == "mean" else "cls"
        keys = {key: pooling for key in (self.layout.pooling_key,) if key}
        return super()._settings() | {"problem_type": PROBLEM_TYPES[self.kind], **keys}

    def _take_settings(self, settings: Mapping[str, object], path: Path) -> None:
        stated = settings.get("problem_type")
        kinds: dict[object, LabelKind] = {name: kind for kind, name in PROBLEM_TYPES.items()}
        kinds[None] = "number" if len(self.labels) == 1 else "class"
        if not isinstance(stated, str | None) or stated not in kinds:
            where = path / "config.json"
            raise ModelError(f"{where}: problem_type is {stated!r}, which is unknown.")
        self.kind = kinds[stated]
        if settings.get(self.layout.pooling_key) == "mean":
            self.pooling = "mean"

    def _layers(self) -> dict[str, nn.Module]:
        named = (
            (self.layout.out, self.out),
            (self.layout.dense, self.dense),
            (self.layout.norm, self.norm),
        )
        return {name: layer for name, layer in named if name is not None and layer is not None}

    @classmethod
    def start(
        cls,
        path: str | Path,
        *,
        labels: Sequence[str] = ("LABEL_0",),
        kind: LabelKind = "class",
        max_len: int | None = None,
        side: SideFile | None = None,
        random_weights: bool = False,
    ) -> Self:
        """Put a new head on the encoder of a bi-encoder, a pre-trained checkpoint or a classifier.

        If ``max_len``, the most tokens of a text or pair, is None, it is that of the model in
        ``path``. With ``random_weights``, the weights of the encoder are random, of the same shape.
        """
        encoder, tokenizer = start_encoder(path, max_len, random_weights=random_weights)
        pooled = SEQUENCE_HEADS[encoder.config.layout].dense is None
        return cls(with_pooler(encoder, pooled), tokenizer, labels=labels, kind=kind, side=side)

    @classmethod
    def _published(cls, layout: str) -> tuple[str, str]:
        head = SEQUENCE_HEADS.get(layout)
        return ("", "") if head is None else (head.architecture, head.out)


def trained_pooling(path: str | Path) -> tuple[Pooling, bool]:
    """Return how the model in a folder makes a state of a text, and whether that has norm 1.

    Of pooling modes that a model concatenates, the first one is returned: a head reads one state. A
    folder of an encoder alone was trained for no pooling, so the answer is that of transformers'
    classifiers: the state of the first token, as it is.
    """
    folder = read_folder(Path(path))
    if not (folder.path / "modules.json").is_file():
        side = read_side_file(folder.path)
        return side.pooling, side.unit_length
    modules = folder.description.modules
    modes = [mode for each in modules if each.kind == "Pooling" for mode in pooling_modes(each)]
    known = [mode for mode in get_args(Pooling) if mode in modes[:1]]
    return (known[0] if known else "cls"), folder.description.normalize


class CrossEncoder(SequenceClassifier):
    """A classifier of text pairs whose folder sentence-transformers loads as a CrossEncoder."""

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        *,
        labels: Sequence[str] = ("LABEL_0",),
        kind: LabelKind = "class",
        activation: nn.Module | None = None,
        segments: bool = True,
        side: SideFile | None = None,
    ) -> None:
        super().__init__(encoder, tokenizer, labels=labels, kind=kind, segments=segments, side=side)
        single = len(self.labels) == 1
        # It is applied to the logits for predictions, not in training.
        self.activation = activation or (nn.Sigmoid() if single else nn.Identity())

    def scores(self, tokens: PackedTokens) -> Tensor:
        """Compute scores, float32 (batch,) or (batch, labels), of logits over the temperature."""
        scores: Tensor = self.activation(self(tokens).float() / self.temperature)
        return scores.squeeze(-1) if len(self.labels) == 1 else scores

    def _settings(self) -> dict[str, object]:
        activation = activation_path(self.activation)
        settings = super()._settings() | {
            "sentence_transformers": {"activation_fn": activation},
            "sbert_ce_default_activation_function": activation,  # key of sentence-transformers v3
        }
        del settings["problem_type"]  # transformers has no problem type for a score from 0 to 1
        return settings

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> CrossEncoder:
        """Load a model as `load` does, from a folder that `read_folder` has read."""
        if reason := why_no_native_pairs(folder):
            raise ModelError(f"{folder.path}: {reason}. Use the engine sentence-transformers.")
        model = super().from_folder(folder)
        if path := pair_activation(folder):
            model.activation = make_activation(path)
        return model
