"""Opening an engine where and in the precision that is asked for, its numbers checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import nn

from sbert_search.embedding.engine_protocol import EngineName, OpenedModel
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.loading.folder import ModelDescription
from sbert_search.models.loading.identity import IN_MEMORY
from sbert_search.models.loading.weights_hash import state_sha256
from sbert_search.runtime.device import Precision, resolve_device, resolve_precision
from sbert_search.runtime.progress import note
from sbert_search.tokens.tokenizer import TextTokenizer

PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class MovableEngine(Protocol):
    """An engine of torch: for texts, or for pairs of them."""

    name: EngineName

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute there, in that precision, from now on."""


class TokenizingEngine(Protocol):
    """An engine that has its model's tokenizer."""

    tokenizer: TextTokenizer


E = TypeVar("E", bound=MovableEngine)
T = TypeVar("T", bound=TokenizingEngine)
MoveAndCheck = Callable[[E, torch.device, torch.dtype], None]


def open_engine(
    load: Callable[[], E], move_and_check: MoveAndCheck[E], *, device: str, precision: Precision
) -> tuple[E, torch.device, torch.dtype]:
    """Load an engine and move it; "auto" goes back to fp32 where its choice is not exact enough.

    Args:
        load: Loads a model on the CPU in fp32.
        move_and_check: Moves it and raises ModelError when its numbers change too much.
        device: Where, by name.
        precision: Of matrix products.

    Returns:
        The engine, where it is and in which type.

    Raises:
        ConfigError: A device or a precision that is not there.
        ModelError: The model cannot be loaded, or computes wrong numbers.
    """
    place = resolve_device(device)
    resolve_precision(precision, place)  # refuses an unknown name before the weights are read
    engine = load()
    dtype = resolve_precision(precision, place, bf16_on_cpu=engine.name == "native")
    try:
        move_and_check(engine, place, dtype)
    except ModelError as error:
        if precision != "auto" or dtype == torch.float32:
            raise
        note(f"{error} Going on in fp32.")
        engine, dtype = load(), torch.float32
        move_and_check(engine, place, dtype)
    return engine, place, dtype


def describe_object(model: nn.Module, description: ModelDescription, engine: T) -> OpenedModel[T]:
    """Describe an engine by a model in memory, which is taken where it is and as it is."""
    weights = next(model.parameters())
    return OpenedModel(
        type(model).__name__,
        "in memory",
        description,
        lambda: IN_MEMORY + state_sha256(model),
        engine.tokenizer.sha256,
        engine,
        PRECISIONS[weights.dtype],
        str(weights.device),
    )


def check_engine(engine: str) -> None:
    """Refuse an engine that is not there.

    Raises:
        ConfigError: Naming it.
    """
    if engine not in ("native", "sentence-transformers"):
        raise ConfigError(
            f"The engine {engine!r} does not compute this; use native or sentence-transformers."
        )
