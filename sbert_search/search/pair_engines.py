"""The engines that compute the scores of a `Reranker`, and the function that opens one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from sbert_search.base.device import Precision, plain_memory_errors
from sbert_search.base.progress import note
from sbert_search.base.verdicts import Verdict
from sbert_search.embed.arguments import CalibrationTexts
from sbert_search.embed.engines.native import PackedEngine, packed_batches
from sbert_search.embed.engines.opening import describe_object, open_folder
from sbert_search.embed.engines.protocol import (
    SELF_CHECK_TEXTS,
    EngineName,
    OpenedModel,
    check_scores,
)
from sbert_search.embed.protocol import Vectors
from sbert_search.errors import ModelError
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.loading.folder import ModelDescription, ModelFolder
from sbert_search.models.loading.interchange import LibraryPairScorer, load_cross_encoder
from sbert_search.models.loading.native_support import (
    require_kind,
    require_loadable,
    why_no_native_pairs,
)
from sbert_search.models.sequence_classifier import CrossEncoder
from sbert_search.text.tokens.tokenizer import EncodedPairs, TextTokenizer

if TYPE_CHECKING:
    import sentence_transformers

_CHECK_PAIRS = list(zip(SELF_CHECK_TEXTS, reversed(SELF_CHECK_TEXTS), strict=True))
# For each precision: the largest allowed difference between the scores of the engine and those on
# the CPU in fp32. The difference is divided by the largest absolute value of the fp32 scores, or by
# 1 if that value is below 1.
_TOLERANCES = {"fp32": 1e-3, "bf16": 0.05, "fp16": 0.05, "int8": 0.1}
_CLASSIFIERS = ("ForSequenceClassification", "ForCausalLM")


class PairEngine(Protocol):
    """The software that computes a cross-encoder; it scores one batch of pairs at a time."""

    name: EngineName
    num_labels: int  # number of scores of a pair
    labels: tuple[str, ...]  # names of these scores
    tokenizer: TextTokenizer  # truncates pairs to the model's limit
    batch_tokens: int  # of a batch at which the engine is fast

    def __call__(self, pairs: Sequence[tuple[str, str]], encoded: EncodedPairs) -> Vectors:
        """Score pairs in one step, float32 (n, labels); `MemoryError`: the batch is too large."""

    def start(
        self, pairs: Sequence[tuple[str, str]], encoded: EncodedPairs
    ) -> Callable[[], Vectors]:
        """Start to score; return a function that waits for the scores. Errors as for `__call__`."""

    def fastest_precision(self) -> Verdict | None:
        """Measure whether the CPU is faster in fp32 or bf16; None: not measured, fp32 is used."""

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the model to a device and a precision."""

    def use_logits(self) -> None:
        """From now on, return logits as scores, without an activation function."""

    @property
    def has_sigmoid(self) -> bool:
        """Whether a sigmoid turns logits into scores."""


class NativePairEngine(PackedEngine):
    """This package's own cross-encoder; it computes packed batches, which have no padding."""

    def __init__(self, model: CrossEncoder) -> None:
        self.num_labels, self.labels = len(model.labels), model.labels
        super().__init__(model, lambda tokens: model.scores(tokens).view(-1, self.num_labels))
        self.model = model

    def __call__(self, pairs: Sequence[tuple[str, str]], encoded: EncodedPairs) -> Vectors:
        """Score pairs, float32 (n, labels), in one packed batch."""
        return self.start(pairs, encoded)()

    def start(
        self, pairs: Sequence[tuple[str, str]], encoded: EncodedPairs
    ) -> Callable[[], Vectors]:
        """Launch a packed batch and return a function that waits for its scores."""
        return self.launch(encoded.ids, self.model.segments(encoded))

    def use_logits(self) -> None:
        """From now on, return logits as scores, without an activation function."""
        self.model.activation, self.model.temperature = nn.Identity(), 1.0

    @property
    def has_sigmoid(self) -> bool:
        """Whether a sigmoid turns logits into scores."""
        return isinstance(self.model.activation, nn.Sigmoid)

    def batches(self, texts: Sequence[str]) -> Iterator[PackedTokens]:
        """Yield packed batches for a calibration; a pair is a text and the text after it."""
        encoded = self.tokenizer.encode_pairs(list(pairwise(texts)))
        return packed_batches(encoded.ids, self.model.segments(encoded))


class LibraryPairEngine:
    """Any cross-encoder of sentence-transformers, computed by that library."""

    name: EngineName = "sentence-transformers"
    batch_tokens = 16_384

    def __init__(self, model: LibraryPairScorer) -> None:
        self.model, self.tokenizer = model, model.tokenizer
        self.num_labels, self.labels = model.num_labels, model.labels

    def __call__(self, pairs: Sequence[tuple[str, str]], encoded: EncodedPairs) -> Vectors:
        """Score pairs, float32 (n, labels); the library splits the batch further."""
        with plain_memory_errors():
            return self.model.predict(pairs)

    def start(
        self, pairs: Sequence[tuple[str, str]], encoded: EncodedPairs
    ) -> Callable[[], Vectors]:
        """Score the pairs at once, and return a function that returns the scores."""
        scores = self(pairs, encoded)
        return lambda: scores

    def fastest_precision(self) -> Verdict | None:
        """Return None: the library computes in fp32 unless a precision is named."""
        return None

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the model to a device and a precision."""
        self.model.model.to(device, dtype)

    def use_logits(self) -> None:
        """From now on, return logits as scores, without an activation function."""
        self.model.model.activation_fn = nn.Identity()

    @property
    def has_sigmoid(self) -> bool:
        """Whether a sigmoid turns logits into scores."""
        return isinstance(self.model.model.activation_fn, nn.Sigmoid)


def open_pair_model(
    model: str | Path | CrossEncoder | sentence_transformers.CrossEncoder,
    *,
    device: str,
    engine: EngineName,
    precision: Precision,
    calibrate: CalibrationTexts = None,
) -> OpenedModel[PairEngine]:
    """Find a cross-encoder, choose an engine that can compute it, load it and check its scores.

    A model in memory is switched to evaluation mode; its device and precision do not change.
    """
    if not isinstance(model, (str, Path)):
        own: PairEngine
        if isinstance(model, CrossEncoder):
            architecture, own = model.encoder.config.layout, NativePairEngine(model)
        else:
            library = LibraryPairScorer(model)
            architecture, own = library.architecture, LibraryPairEngine(library)
        max_len = own.tokenizer.max_len
        description = ModelDescription(architecture=architecture, modules=(), max_len=max_len)
        asked = {"device": device, "precision": precision, "engine": engine}
        return describe_object(model, description, own, asked)
    return open_folder(
        model,
        _load,
        _check_change,
        device=device,
        engine=engine,
        precision=precision,
        calibrate=calibrate,
    )


def _load(folder: ModelFolder, engine: EngineName) -> PairEngine:
    """Load a model on the CPU in fp32."""
    require_kind(folder, "CrossEncoder")
    architecture = folder.class_name
    if not architecture.endswith(_CLASSIFIERS):
        raise ModelError(
            f"{folder.path} is not a cross-encoder: its architecture {architecture} does not score "
            "pairs. Pass a model whose architecture ends in ForSequenceClassification."
        )
    require_loadable(folder)
    if engine == "native":
        reason = why_no_native_pairs(folder)
        if reason is None:
            return NativePairEngine(CrossEncoder.from_folder(folder))
        note(f"{folder.path}: {reason}; sentence-transformers computes it.")
    folder.weights_sha256()  # refuses pickle files, which the library would load
    return LibraryPairEngine(LibraryPairScorer(load_cross_encoder(folder.path)))


def _check_change(
    engine: PairEngine, change: Callable[[], None], *, precision: str, where: str
) -> None:
    """Change a model on the CPU in fp32, and compare its scores with those before the change."""
    encoded = engine.tokenizer.encode_pairs(_CHECK_PAIRS)
    reference = engine(_CHECK_PAIRS, encoded)
    change()
    scores = engine(_CHECK_PAIRS, encoded)
    check_scores(reference, scores, tolerance=_TOLERANCES[precision], where=where)
