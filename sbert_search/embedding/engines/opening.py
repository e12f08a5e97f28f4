"""Open a model with an engine that uses torch: load it, convert it and check its output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, get_args

import torch

from sbert_search.base.device import Precision
from sbert_search.embedding.arguments import CalibrationTexts
from sbert_search.embedding.engines.int8 import choose_fastest, open_int8
from sbert_search.embedding.engines.loading import (
    PRECISIONS,
    MovableEngine,
    check_engine,
    open_engine,
)
from sbert_search.embedding.engines.protocol import EngineName, OpenedModel
from sbert_search.errors import ConfigError
from sbert_search.models.loading.folder import ModelFolder, read_folder
from sbert_search.models.loading.resolve import ResolvedModel, resolve_model

E = TypeVar("E", bound=MovableEngine)
C = TypeVar("C", bound=MovableEngine, contravariant=True)


class CheckedChange(Protocol[C]):
    """Changes an engine and checks that its output stays nearly the same."""

    def __call__(
        self, engine: C, change: Callable[[], None], /, *, precision: str, where: str
    ) -> None:
        """Call ``change``, and compare the outputs before and after it.

        Args:
            engine: The engine, on the CPU in fp32.
            change: Moves the engine to a device or converts it to a precision.
            precision: Precision after the change. It determines the largest allowed difference.
            where: Engine, device and precision, for the message.

        Raises:
            ModelError: The output changes too much.
        """


def open_folder(
    model: str | Path | None,
    load: Callable[[ModelFolder, EngineName], E],
    check: CheckedChange[E],
    *,
    device: str,
    engine: EngineName,
    precision: Precision,
    calibrate: CalibrationTexts,
) -> OpenedModel[E]:
    """Find a model, load it, move it to a device and a precision, and check its output.

    Args:
        model: A folder or a name; None: the default model.
        load: Loads the model of a folder on the CPU in fp32. It uses the named engine if that
            engine can compute the model, and otherwise another engine.
        check: Converts the engine, and compares the outputs before and after the conversion.
        device: Name of a device, or auto.
        engine: Name of an engine.
        precision: Precision of the model's weights and matrix products.
        calibrate: Texts for the calibration of int8.

    Raises:
        ConfigError: The device, the engine or the precision is unknown or not available.
        CorpusError: The texts in ``calibrate`` cannot be read, or are too few.
        ModelError: The model cannot be found or loaded, or its output is wrong.
    """
    check_engine(engine)
    if precision not in get_args(Precision):
        raise ConfigError(f"precision is {precision!r}; use {', '.join(get_args(Precision))}.")
    resolved = resolve_model(model)
    folder = read_folder(resolved.path)
    if precision == "fastest":
        candidate = load(folder, engine)
        precision = choose_fastest(folder, candidate, device=device, texts=calibrate)
    if precision == "int8":
        fp32 = load(folder, engine)
        where = "native on cpu in int8"
        checked = partial(check, fp32, precision="int8", where=where)
        return open_int8(resolved, folder, fp32, checked, device=device, texts=calibrate)
    load_again = partial(load, folder, engine)
    return place(resolved, folder, load_again, check, device=device, precision=precision)


def place(
    resolved: ResolvedModel,
    folder: ModelFolder,
    load: Callable[[], E],
    check: CheckedChange[E],
    *,
    device: str,
    precision: Precision,
) -> OpenedModel[E]:
    """Load a model of a folder as `open_folder` does, in a precision other than int8."""

    def move_and_check(engine: E, target: torch.device, dtype: torch.dtype) -> None:
        name = PRECISIONS[dtype]
        where = f"{engine.name} on {target} in {name}"
        check(engine, lambda: engine.move(target, dtype), precision=name, where=where)

    placed = open_engine(load, move_and_check, device=device, precision=precision)
    return OpenedModel.from_folder(
        resolved,
        folder,
        placed.engine,
        PRECISIONS[placed.dtype],
        str(placed.device),
        placed.verdict,
    )
