"""The engines of an `Embedder` that use torch, and a function that opens a model with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from sbert_search.base.device import Precision, plain_memory_errors
from sbert_search.base.progress import note, warn
from sbert_search.base.verdicts import Verdict
from sbert_search.embed.arguments import CalibrationTexts
from sbert_search.embed.engines.native import NativeEngine
from sbert_search.embed.engines.opening import describe_object, open_folder
from sbert_search.embed.engines.protocol import (
    INT8_COSINE,
    Engine,
    EngineName,
    OpenedModel,
    check_alone,
    check_vectors,
    self_check_texts,
)
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.loading.folder import ModelFolder
from sbert_search.models.loading.interchange import LibraryEncoder, load_sentence_transformer
from sbert_search.models.loading.native_support import (
    require_kind,
    require_loadable,
    why_not_native,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class LibraryEngine:
    """Any sentence-transformers model; the library sentence-transformers computes it."""

    name: EngineName = "sentence-transformers"
    batch_tokens = 16_384

    def __init__(self, model: LibraryEncoder) -> None:
        self.model, self.dim, self.tokenizer = model, model.dim, model.tokenizer

    def start(self, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        """Compute vectors in this call, in batches of the library; the result returns them."""
        with plain_memory_errors():
            vectors = self.model.encode(tokens.texts, tokens.prompt)
        return lambda: vectors

    def fastest_precision(self) -> Verdict | None:
        """Return None: the library computes in fp32 unless a precision is named."""
        return None

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the model to a device and convert it to a precision."""
        self.model.model.to(device, dtype)


TorchEngine = NativeEngine | LibraryEngine
# Minimum cosine similarity of a vector to the vector of the same text on the CPU in fp32.
_COSINES = {"fp32": 0.99999, "bf16": 0.999, "fp16": 0.999, "int8": INT8_COSINE}


def open_model(
    model: str | Path | SentenceTransformer | BiEncoder | None,
    *,
    device: str,
    engine: EngineName,
    precision: Precision,
    calibrate: CalibrationTexts = None,
) -> OpenedModel[Engine]:
    """Find a model, choose an engine that can compute it, load it and check its output.

    A model in memory stays on its device and in its precision; it is put into evaluation mode.
    """
    asked = {"device": device, "precision": precision, "engine": engine}
    if isinstance(model, BiEncoder):
        return describe_object(model, model.describe(), NativeEngine(model), asked)
    if model is not None and not isinstance(model, (str, Path)):
        library = LibraryEngine(LibraryEncoder(model))
        opened = describe_object(model, library.model.describe(), library, asked)
        short = self_check_texts(library.tokenizer).take([0, 1])  # the model may have few positions
        _check_padding(library, short, _COSINES[opened.precision])
        return opened
    return open_folder(
        model,
        _load,
        _check_change,
        device=device,
        engine=engine,
        precision=precision,
        calibrate=calibrate,
    )


def _load(folder: ModelFolder, engine: EngineName) -> TorchEngine:
    require_kind(folder, "SentenceTransformer")
    require_loadable(folder)
    _warn_of_head(folder)
    if engine == "native":
        reason = why_not_native(folder)
        if reason is None:
            return NativeEngine(BiEncoder.from_folder(folder))
        note(f"{folder.path}: {reason}; sentence-transformers computes it.")
    folder.weights_sha256()  # refuses pickle files, which the library would load
    return LibraryEngine(LibraryEncoder(load_sentence_transformer(folder.path)))


def _warn_of_head(folder: ModelFolder) -> None:
    """Warn of a model of labels or pairs, of which only the encoder is used."""
    name = folder.class_name
    if name.endswith("ForSequenceClassification") and not (folder.path / "modules.json").is_file():
        warn(
            f"{folder.path} is a {name} without modules.json: its head is left out, and a vector "
            "is the mean of the token vectors, which nobody trained to compare texts. A "
            "cross-encoder reranks hits (Reranker, `search --rerank`)."
        )


def _check_change(
    engine: TorchEngine, change: Callable[[], None], *, precision: str, where: str
) -> None:
    """Change a model on the CPU in fp32 and compare its vectors with those before the change.

    The vectors are computed twice after the change: all texts in one batch, then one text at a
    time. torch chooses kernels by the shape of a batch, so a fault may show in one case only. If
    the two differ before the change, the fault is the model's.
    """
    min_cosine = _COSINES[precision]
    texts = self_check_texts(engine.tokenizer)
    reference = engine.start(texts)()
    if isinstance(engine, LibraryEngine):  # other engines compute without padding
        _check_padding(engine, texts, _COSINES["fp32"])
    change()
    check_vectors(reference, engine.start(texts)(), min_cosine=min_cosine, where=where)
    where = f"{where}, one text at a time,"
    check_vectors(reference, _one_by_one(engine, texts), min_cosine=min_cosine, where=where)


def _check_padding(engine: LibraryEngine, texts: TokenizedTexts, min_cosine: float) -> None:
    alone, remedy = _one_by_one(engine, texts), engine.model.remedy_for_padding
    check_alone(engine.start(texts)(), alone, min_cosine=min_cosine, remedy=remedy)


def _one_by_one(engine: TorchEngine, texts: TokenizedTexts) -> Vectors:
    return np.concatenate([engine.start(texts.take([row]))() for row in range(len(texts))])
