"""What computes the scores of a `Reranker`: one class an engine, one function that opens one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from sbert_search.embedding.engine_loading import (
    PRECISIONS,
    check_engine,
    describe_object,
    open_engine,
)
from sbert_search.embedding.engine_protocol import EngineName, OpenedModel
from sbert_search.embedding.native import PackedEngine
from sbert_search.embedding.protocol import Vectors
from sbert_search.embedding.selfcheck import SELF_CHECK_TEXTS
from sbert_search.errors import ModelError
from sbert_search.models.cross_encoder import CrossEncoder
from sbert_search.models.loading.folder import ModelDescription, ModelFolder, read_folder
from sbert_search.models.loading.interchange import LibraryPairScorer, load_cross_encoder
from sbert_search.models.loading.native_support import (
    require_kind,
    require_sane,
    why_no_native_pairs,
)
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.runtime.device import Precision, plain_memory_errors
from sbert_search.runtime.progress import note
from sbert_search.tokens.tokenizer import EncodedPairs, TextTokenizer

if TYPE_CHECKING:
    import sentence_transformers

_CHECK_PAIRS = list(zip(SELF_CHECK_TEXTS, reversed(SELF_CHECK_TEXTS), strict=True))
# How far a score may be from the CPU's in fp32, relative to the largest of the check.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.05}
_CLASSIFIERS = ("ForSequenceClassification", "ForCausalLM")


class PairEngine(Protocol):
    """Scores one batch of pairs at a time.

    Attributes:
        name: Which engine it is.
        num_labels: Numbers that a pair becomes.
        labels: Their names.
        tokenizer: Cuts to what the model reads.
        batch_tokens: Tokens of a batch at which it is fastest.
    """

    name: EngineName
    num_labels: int
    labels: tuple[str, ...]
    tokenizer: TextTokenizer
    batch_tokens: int

    def __call__(self, pairs: Sequence[tuple[str, str]], encoded: EncodedPairs) -> Vectors:
        """Score pairs in one step, float32 (n, labels).

        Raises:
            MemoryError: The device has too little memory for a batch of this size.
        """

    def start(
        self, pairs: Sequence[tuple[str, str]], encoded: EncodedPairs
    ) -> Callable[[], Vectors]:
        """Begin to score and return what waits for the scores; errors are those of a call."""

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute there, in that precision, from now on."""


class NativePairEngine(PackedEngine):
    """This package's own cross-encoder, on packed pairs."""

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
        """Launch a packed batch and return what waits for its scores."""
        return self.launch(encoded.ids, self.model.segments(encoded))


class LibraryPairEngine:
    """Any cross-encoder of sentence-transformers, by the library itself."""

    name: EngineName = "sentence-transformers"
    batch_tokens = 16_384

    def __init__(self, model: LibraryPairScorer) -> None:
        self.model, self.tokenizer = model, model.tokenizer
        self.num_labels, self.labels = model.num_labels, model.labels

    def __call__(self, pairs: Sequence[tuple[str, str]], encoded: EncodedPairs) -> Vectors:
        """Score pairs, float32 (n, labels); the library cuts the batch further."""
        with plain_memory_errors():
            return self.model.predict(pairs)

    def start(
        self, pairs: Sequence[tuple[str, str]], encoded: EncodedPairs
    ) -> Callable[[], Vectors]:
        """Score at once; nothing is left to wait for."""
        scores = self(pairs, encoded)
        return lambda: scores

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute there."""
        self.model.model.to(device, dtype)


def open_pair_model(
    model: str | Path | CrossEncoder | sentence_transformers.CrossEncoder,
    *,
    device: str,
    engine: EngineName,
    precision: Precision,
) -> OpenedModel[PairEngine]:
    """Find a cross-encoder, choose the engine that can compute it, load it and check its numbers.

    A model in memory is taken where it is and as it is, in evaluation mode.

    Raises:
        ConfigError: A device, an engine or a precision that is not there.
        ModelError: The model cannot be found or loaded, is no cross-encoder, or computes wrong
            numbers.
    """
    if isinstance(model, CrossEncoder):
        return _describe_object(model, model.encoder.config.layout, NativePairEngine(model))
    if not isinstance(model, (str, Path)):
        library = LibraryPairScorer(model)
        return _describe_object(model, library.architecture, LibraryPairEngine(library))
    check_engine(engine)
    found = resolve_model(model)
    folder = read_folder(found.path)
    opened, place, dtype = open_engine(
        partial(_open_folder, folder, engine), _move_and_check, device=device, precision=precision
    )
    return OpenedModel.from_folder(found, folder, opened, PRECISIONS[dtype], str(place))


def _describe_object(
    model: CrossEncoder | sentence_transformers.CrossEncoder, architecture: str, engine: PairEngine
) -> OpenedModel[PairEngine]:
    max_len = engine.tokenizer.max_len
    description = ModelDescription(architecture=architecture, modules=(), max_len=max_len)
    return describe_object(model, description, engine)


def _open_folder(folder: ModelFolder, engine: EngineName) -> PairEngine:
    """Load a model on the CPU in fp32."""
    require_kind(folder, "CrossEncoder")
    architecture = (folder.transformer.get("architectures") or ["of no known kind"])[0]
    if not str(architecture).endswith(_CLASSIFIERS):
        raise ModelError(
            f"{folder.path} is no cross-encoder: its model is {architecture}, which scores no "
            "pairs. Pass one that ends in ForSequenceClassification."
        )
    require_sane(folder)
    if engine == "native":
        reason = why_no_native_pairs(folder)
        if reason is None:
            return NativePairEngine(CrossEncoder.from_folder(folder))
        note(f"{folder.path}: {reason}; sentence-transformers computes it.")
    folder.weights_sha256()  # refuses pickles, which the library would open
    return LibraryPairEngine(LibraryPairScorer(load_cross_encoder(folder.path)))


def _move_and_check(engine: PairEngine, device: torch.device, dtype: torch.dtype) -> None:
    """Move a model from the CPU in fp32, and compare scores before and after."""
    encoded = engine.tokenizer.encode_pairs(_CHECK_PAIRS)
    where = f"{engine.name} on {device} in {PRECISIONS[dtype]}"
    reference = engine(_CHECK_PAIRS, encoded)
    engine.move(device, dtype)
    scores = engine(_CHECK_PAIRS, encoded)
    if not np.isfinite(scores).all():
        raise ModelError(f"{where} gives scores that are not finite; use --device cpu.")
    apart = float(np.abs(scores - reference).max() / max(1.0, np.abs(reference).max()))
    if apart > _TOLERANCE[dtype]:
        raise ModelError(
            f"{where} gives wrong scores: {apart:.3g} from those of the CPU in fp32, at most "
            f"{_TOLERANCE[dtype]:g} allowed; use --device cpu or --precision fp32."
        )
