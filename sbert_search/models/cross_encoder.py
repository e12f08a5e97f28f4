"""A model that reads a pair of texts together and gives a score, or a logit per class.

A layout is the published file format of one model family, such as bert or roberta. It decides which
layers the classifier has after the encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from sbert_search.encoder.encoder import Encoder
from sbert_search.encoder.packed import PackedTokens
from sbert_search.encoder.tensors import first_names
from sbert_search.encoder.weights import (
    Checkpoint,
    load_encoder,
    read_checkpoint,
    save_encoder,
)
from sbert_search.errors import ModelError, WeightsError
from sbert_search.models.bi_encoder import check_tokenizer
from sbert_search.models.heads import PAIR_HEADS, activation_path, make_activation
from sbert_search.models.loading.folder import ModelFolder, load_tokenizer, read_folder
from sbert_search.models.loading.native_support import (
    gets_segment_ids,
    pair_activation,
    why_no_native_pairs,
)
from sbert_search.tokens.tokenizer import EncodedPairs, TextTokenizer


class CrossEncoder(nn.Module):
    """A classifier or regressor of text pairs, on the hidden state of a pair's first token.

    Attributes:
        encoder: Computes hidden states; it has a pooler in the layouts that classify with one.
        dense: Linear layer before ``out``, in layouts without a pooler.
        out: Last layer, with one output per label.
        labels: Names of the classes; a model with a single label gives a score.
        activation: Function applied to the logits for predictions, not in training.
        tokenizer: Turns pairs into token ids; its ``max_len`` is the limit of the model.
        gets_segment_ids: Whether the model gets segment ids, which tell the two texts apart.
    """

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        *,
        labels: Sequence[str] = ("LABEL_0",),
        activation: nn.Module | None = None,
        segments: bool = True,
    ) -> None:
        super().__init__()
        check_tokenizer(encoder, tokenizer)
        hidden, self.layout = encoder.config.hidden_size, PAIR_HEADS[encoder.config.layout]
        if self.layout.dense is None and encoder.pooler is None:
            raise ModelError(
                f"A cross-encoder of the layout {encoder.config.layout!r} classifies a pair with "
                "the pooler; make the encoder with pooler=True."
            )
        self.encoder, self.tokenizer, self.labels = encoder, tokenizer, tuple(labels)
        self.gets_segment_ids = segments and encoder.config.token_type_vocab > 1
        self.dense = None if self.layout.dense is None else nn.Linear(hidden, hidden)
        self.dense_activation = self.layout.activation()
        self.dropout = nn.Dropout(encoder.config.hidden_dropout)
        self.out = nn.Linear(hidden, len(self.labels))
        single = len(self.labels) == 1
        self.activation = activation or (nn.Sigmoid() if single else nn.Identity())
        for layer in (self.dense, self.out):
            if layer is not None:
                nn.init.normal_(layer.weight, std=encoder.config.initializer_range)
                nn.init.zeros_(layer.bias)

    @property
    def needs_only_starts(self) -> bool:
        """Whether only `PackedTokens.starts` tells the encoder where each text of a batch begins.

        If so, a batch may end in padding tokens, which belong to no text; see
        `Encoder.needs_only_starts`.
        """
        return self.encoder.needs_only_starts

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Compute logits, float32 (batch, labels)."""
        first = self.encoder.first_states(tokens)
        if self.dense is None:
            pooled = self.encoder.pool_first(first)
        else:
            first = self.dropout(first)
            pooled = self.dense_activation(self.dense(first.to(self.dense.weight.dtype)))
        logits: Tensor = self.out(self.dropout(pooled).to(self.out.weight.dtype))
        return logits

    def scores(self, tokens: PackedTokens) -> Tensor:
        """Compute scores, float32 (batch,), or (batch, labels) if the model has several labels."""
        scores: Tensor = self.activation(self(tokens).float())
        return scores.squeeze(-1) if len(self.labels) == 1 else scores

    def segments(self, pairs: EncodedPairs) -> Sequence[Sequence[int]] | None:
        """Segment id of each token; None if the model gets no segment ids."""
        return pairs.types if self.gets_segment_ids else None

    def pack(self, pairs: EncodedPairs) -> PackedTokens:
        """Pack encoded pairs into a batch, on the CPU."""
        return PackedTokens.from_lists(pairs.ids, self.segments(pairs))

    def save(self, path: str | Path) -> None:
        """Write a folder that transformers and sentence-transformers v3, v5 and v6 load.

        Raises:
            ModelError: The folder already contains a model.
        """
        path, layout = Path(path), self.layout
        activation = activation_path(self.activation)
        head = {f"{layout.out}.{name}": part for name, part in self.out.state_dict().items()}
        if self.dense is not None:
            state = self.dense.state_dict()
            head |= {f"{layout.dense}.{name}": part for name, part in state.items()}
        settings: dict[str, object] = {
            "architectures": [layout.architecture],
            "id2label": {str(n): label for n, label in enumerate(self.labels)},
            "label2id": {label: n for n, label in enumerate(self.labels)},
            "sentence_transformers": {"activation_fn": activation},
            "sbert_ce_default_activation_function": activation,  # key of sentence-transformers v3
        }
        save_encoder(self.encoder, path, head=head, settings=settings)
        self.tokenizer.save(path, segments=self.gets_segment_ids)

    @classmethod
    def load(cls, path: str | Path) -> CrossEncoder:
        """Load a folder with a sequence classifier, in float32 on the CPU.

        Raises:
            ModelError: The folder contains no such model, or `Encoder` does not implement its
                architecture.
            WeightsError: The weights are damaged or do not fit the model's settings.
        """
        return cls.from_folder(read_folder(Path(path)))

    @classmethod
    def start(
        cls, path: str | Path, *, labels: Sequence[str] = ("LABEL_0",), max_len: int | None = None
    ) -> CrossEncoder:
        """Put a new head on the encoder of a bi-encoder, a pre-trained checkpoint or a classifier.

        Args:
            path: A model folder.
            labels: Names of the classes; a model with a single label gives a score.
            max_len: Most tokens of a pair; None: the limit of the model in ``path``.

        Raises:
            ModelError: The folder contains no model, or `Encoder` does not implement its
                architecture.
            WeightsError: The weights are damaged or do not fit the model's settings.
        """
        folder = read_folder(Path(path))
        encoder = load_encoder(folder.transformer_path)
        tokenizer = load_tokenizer(folder)
        if max_len is not None:
            tokenizer = TextTokenizer(tokenizer.backend, max_len, folder=tokenizer.folder)
        return cls(_with_pooler(encoder), tokenizer, labels=labels)

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> CrossEncoder:
        """Load a model as `load` does, from a folder that `read_folder` has read."""
        if reason := why_no_native_pairs(folder):
            raise ModelError(f"{folder.path}: {reason}. Use the engine sentence-transformers.")
        read = read_checkpoint(folder.transformer_path)
        model = cls(
            read.encoder,
            load_tokenizer(folder),
            labels=_labels(read, folder.path),
            activation=make_activation(path) if (path := pair_activation(folder)) else None,
            segments=gets_segment_ids(folder),
        )
        _fill(model, read, folder.path)
        _refuse_left_over(model, read, folder.path)
        return model.eval()


def _with_pooler(encoder: Encoder) -> Encoder:
    """Add a new pooler if the layout classifies with one and the encoder has none."""
    if encoder.pooler is not None or PAIR_HEADS[encoder.config.layout].dense is not None:
        return encoder
    pooled = Encoder(replace(encoder.config, pooler=True))
    pooled.load_state_dict(encoder.state_dict(), strict=False)
    return pooled


def _labels(read: Checkpoint, path: Path) -> list[str]:
    """Names of the classes. A class without a name is LABEL_0 and so on, as in transformers."""
    out = PAIR_HEADS[read.encoder.config.layout].out
    if f"{out}.weight" not in read.head:
        raise WeightsError(f"{path} holds no {out}.weight; it is not a classifier.")
    names = read.settings.get("id2label")
    names = names if isinstance(names, dict) else {}
    count = read.head[f"{out}.weight"].shape[0]
    return [str(names.get(str(n), f"LABEL_{n}")) for n in range(count)]


def _refuse_left_over(model: CrossEncoder, read: Checkpoint, path: Path) -> None:
    """Refuse tensors of a checkpoint that have the prefix of a head layer but are not used."""
    layers = [name for name in (model.layout.dense, model.layout.out) if name is not None]
    parts = {f"{name}.{part}" for name in layers for part in ("weight", "bias")}
    prefixes = {name.partition(".")[0] for name in layers}
    left = [n for n in read.head if n not in parts and n.partition(".")[0] in prefixes]
    if left:
        raise WeightsError(
            f"{path}: the head does not use {first_names(sorted(left))} of the weights. "
            "Take config.json and weights from one model."
        )


def _fill(model: CrossEncoder, read: Checkpoint, path: Path) -> None:
    """Load the weights of the head."""
    for layer, name in ((model.dense, model.layout.dense), (model.out, model.layout.out)):
        if layer is None:
            continue
        state = {part: read.head.get(f"{name}.{part}") for part in ("weight", "bias")}
        try:
            layer.load_state_dict(state)
        except (RuntimeError, AttributeError) as error:
            raise WeightsError(f"{path}: {name} does not fit: {error}") from error
