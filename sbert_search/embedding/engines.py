"""What computes the vectors of an `Embedder`: one class an engine, one function that opens one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from sbert_search.embedding.engine_loading import (
    PRECISIONS,
    check_engine,
    describe_object,
    open_engine,
)
from sbert_search.embedding.engine_protocol import Engine, EngineName, OpenedModel
from sbert_search.embedding.native import PackedEngine
from sbert_search.embedding.protocol import TokenizedTexts, Vectors
from sbert_search.embedding.selfcheck import SELF_CHECK_TEXTS, check_vectors
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.loading.folder import ModelFolder, read_folder
from sbert_search.models.loading.interchange import LibraryEncoder, load_sentence_transformer
from sbert_search.models.loading.native_support import require_kind, require_sane, why_not_native
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.runtime.device import Precision, plain_memory_errors
from sbert_search.runtime.progress import note

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class NativeEngine(PackedEngine):
    """This package's own encoder, on packed batches."""

    def __init__(self, model: BiEncoder) -> None:
        super().__init__(model, model)
        self.model, self.dim = model, model.dim

    def __call__(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors, float32 (n, dim), in one packed batch."""
        return self.start(tokens)()

    def start(self, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        """Launch a packed batch and return what waits for its vectors."""
        return self.launch(tokens.ids)


class LibraryEngine:
    """Any model of sentence-transformers, by the library itself."""

    name: EngineName = "sentence-transformers"
    batch_tokens = 16_384

    def __init__(self, model: LibraryEncoder) -> None:
        self.model, self.dim, self.tokenizer = model, model.dim, model.tokenizer

    def __call__(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors, float32 (n, dim); the library cuts the batch further."""
        with plain_memory_errors():
            return self.model.encode(tokens.texts, tokens.prompt)

    def start(self, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        """Compute at once; nothing is left to wait for."""
        vectors = self(tokens)
        return lambda: vectors

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute there."""
        self.model.model.to(device, dtype)


TorchEngine = NativeEngine | LibraryEngine


def open_model(
    model: str | Path | SentenceTransformer | BiEncoder | None,
    *,
    device: str,
    engine: EngineName,
    precision: Precision,
) -> OpenedModel[Engine]:
    """Find a model, choose the engine that can compute it, load it and check its numbers.

    A model in memory is taken where it is and as it is, in evaluation mode.

    Raises:
        ConfigError: A device, an engine or a precision that is not there.
        ModelError: The model cannot be found or loaded, or computes wrong numbers.
    """
    if isinstance(model, BiEncoder):
        return describe_object(model, model.describe(), NativeEngine(model))
    if model is not None and not isinstance(model, (str, Path)):
        library = LibraryEncoder(model)
        return describe_object(model, library.describe(), LibraryEngine(library))
    check_engine(engine)
    found = resolve_model(model)
    folder = read_folder(found.path)
    opened, place, dtype = open_engine(
        partial(_open_folder, folder, engine), _move_and_check, device=device, precision=precision
    )
    return OpenedModel.from_folder(found, folder, opened, PRECISIONS[dtype], str(place))


def _open_folder(folder: ModelFolder, engine: EngineName) -> TorchEngine:
    """Load a model on the CPU in fp32."""
    require_kind(folder, "SentenceTransformer")
    require_sane(folder)
    if engine == "native":
        reason = why_not_native(folder)
        if reason is None:
            return NativeEngine(BiEncoder.from_folder(folder))
        note(f"{folder.path}: {reason}; sentence-transformers computes it.")
    folder.weights_sha256()  # refuses pickles, which the library would open
    return LibraryEngine(LibraryEncoder(load_sentence_transformer(folder.path)))


def _move_and_check(engine: TorchEngine, device: torch.device, dtype: torch.dtype) -> None:
    """Move a model from the CPU in fp32, and compare vectors before and after."""
    ids, lost = engine.tokenizer.encode(SELF_CHECK_TEXTS)
    texts = TokenizedTexts(SELF_CHECK_TEXTS, "", ids, lost)
    where = f"{engine.name} on {device} in {PRECISIONS[dtype]}"
    reference = engine(texts)
    engine.move(device, dtype)
    least = 0.99999 if dtype == torch.float32 else 0.999
    check_vectors(reference, engine(texts), least_cosine=least, where=where)
    alone = np.concatenate([engine(texts.take([row])) for row in range(len(texts))])
    check_vectors(reference, alone, least_cosine=least, where=f"{where}, one text at a time,")
