"""Open a model with a task head on a device, and compute the logits of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sbert_search.base.device import Precision, fetch, plain_memory_errors, send
from sbert_search.embed.engines.native import PackedEngine
from sbert_search.embed.engines.opening import describe_object, place
from sbert_search.embed.engines.protocol import SELF_CHECK_TEXTS, OpenedModel, check_scores
from sbert_search.embed.protocol import Vectors
from sbert_search.embed.token_budget import BatchLauncher
from sbert_search.errors import ModelError
from sbert_search.heads.results import TaskName
from sbert_search.models.encoder.inference_layers import freeze
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.loading.folder import ModelDescription, ModelFolder, read_folder
from sbert_search.models.loading.native_support import require_loadable
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.token_classifier import PerTokenModel, QuestionAnswerer, TokenClassifier
from sbert_search.text.tokens.tokenizer import Ids

Head = SequenceClassifier | TokenClassifier | QuestionAnswerer
Rows = Sequence[Sequence[int]]

_LOADERS: dict[str, Callable[[ModelFolder], Head]] = {
    "ForSequenceClassification": SequenceClassifier.from_folder,
    "ForTokenClassification": TokenClassifier.from_folder,
    "ForQuestionAnswering": QuestionAnswerer.from_folder,
}
# Largest allowed difference from the logits on the CPU in fp32, relative to the largest absolute
# value of the logits on the CPU, or to 1 if this value is below 1.
_TOLERANCES = {"fp32": 1e-3, "bf16": 0.1, "fp16": 0.05}


class HeadEngine(PackedEngine):
    """Runs a model with a task head on packed batches."""

    def __init__(self, model: Head) -> None:
        super().__init__(model, model.forward)
        self.model = model

    @property
    def task(self) -> TaskName:
        """What the model does."""
        if isinstance(self.model, SequenceClassifier):
            return "classify"
        return "tag" if isinstance(self.model, TokenClassifier) else "qa"

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the model and convert its encoder to a precision, for inference only."""
        if isinstance(self.model, SequenceClassifier):
            super().move(device, dtype)
            return
        # `PackedEngine.move` may record CUDA graphs, whose output has one row for each text. The
        # output of this model has one row for each token, so it runs without CUDA graphs.
        freeze(self.model.to(device).encoder.to(dtype))
        self._use_device(device)

    @torch.inference_mode()
    def launch_rows(
        self, ids: Sequence[Ids], types: Sequence[Ids] | None, rows: Rows
    ) -> Callable[[], Vectors]:
        """Launch a batch whose logits are needed for the tokens ``rows`` of each text only.

        The result waits for the batch and returns the logits, text after text, float32 (tokens,
        labels). ``types`` are segment ids; None: all are 0.
        """
        assert isinstance(self.model, PerTokenModel)
        device = next(self.model.parameters()).device
        starts = np.cumsum([0, *map(len, ids)])
        flat = [start + row for start, own in zip(starts, rows, strict=False) for row in own]
        with plain_memory_errors():
            tokens = PackedTokens.from_lists(ids, types, device=device)
            wanted = send(np.array(flat, dtype=np.int64), device)
            return fetch(self.model(tokens, wanted).float())


def open_head(
    model: str | Path | Head, *, device: str, precision: Precision
) -> OpenedModel[HeadEngine]:
    """Find a model with a task head, load it, move it to its device and check its logits.

    A model in memory is put into evaluation mode. It stays on its device and in its precision, and
    its logits are not checked.
    """
    if isinstance(model, (SequenceClassifier, PerTokenModel)):
        description = ModelDescription(
            architecture=model.encoder.config.layout, modules=(), max_len=model.tokenizer.max_len
        )
        asked = {"device": device, "precision": precision}
        return describe_object(model, description, HeadEngine(model), asked)
    resolved = resolve_model(model)
    folder = read_folder(resolved.path)
    load = partial(_load, folder)
    return place(resolved, folder, load, _check_change, device=device, precision=precision)


def _load(folder: ModelFolder) -> HeadEngine:
    architecture = folder.class_name
    for ending, load in _LOADERS.items():
        if architecture.endswith(ending):
            require_loadable(folder)
            return HeadEngine(load(folder))
    raise ModelError(
        f"{folder.path} is no task head: its architecture {architecture} neither classifies, nor "
        "tags, nor answers questions. Train one from it with train classify, tag or qa."
    )


def _check_change(
    engine: HeadEngine, change: Callable[[], None], *, precision: str, where: str
) -> None:
    """Move a model from the CPU in fp32 by ``change``, and compare its logits before and after."""
    ids, _ = engine.tokenizer.encode(list(SELF_CHECK_TEXTS))
    reference = _logits(engine, ids)
    change()
    logits = _logits(engine, ids)
    check_scores(reference, logits, tolerance=_TOLERANCES[precision], where=where)


def _logits(engine: HeadEngine, ids: Sequence[Ids]) -> Vectors:
    if isinstance(engine.model, SequenceClassifier):
        return engine.launch(ids)()
    return engine.launch_rows(ids, None, [range(len(each)) for each in ids])()


def per_token_logits(
    engine: HeadEngine,
    launcher: BatchLauncher,
    ids: Sequence[Ids],
    types: Sequence[Ids] | None,
    rows: Rows,
) -> Iterator[tuple[int, Vectors]]:
    """Yield the number of each text and its logits as of `HeadEngine.launch_rows`.

    The launcher forms batches, and so decides the order.
    """

    def start(part: NDArray[np.int64]) -> Callable[[], Vectors]:
        chosen = part.tolist()
        return engine.launch_rows(
            [ids[i] for i in chosen],
            None if types is None else [types[i] for i in chosen],
            [rows[i] for i in chosen],
        )

    lengths = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
    waiting = None  # a batch is split only after the next one has started on the device
    for batch in launcher.launch(lengths, start):
        if waiting is not None:
            yield from _split(*waiting)
        waiting = batch.finish, [(i, len(rows[i])) for i in batch.rows.tolist()]
    if waiting is not None:
        yield from _split(*waiting)


def _split(
    finish: Callable[[], Vectors], texts: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, Vectors]]:
    """Wait for the logits of a batch, check them and split them by (number of text, its tokens)."""
    logits, start = require_finite(finish()), 0
    for number, length in texts:
        yield number, logits[start : start + length]
        start += length


def require_finite(logits: Vectors) -> Vectors:
    """Return the same logits after a check that none is NaN or infinite."""
    if not np.isfinite(logits).all():
        raise ModelError(
            "The model computes logits that are not finite (NaN or infinite). Open it with "
            'precision="fp32" (--precision fp32); if they are not finite there either, '
            "the weights of the model are unusable: train the model again."
        )
    return logits
