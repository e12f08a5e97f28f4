"""Open a model with an engine that uses torch: load it, convert it and check its output."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, get_args

import torch
from torch import nn

from sbert_search.base.device import DTYPES, Precision, resolve_device, resolve_precision
from sbert_search.base.progress import warn
from sbert_search.embed.arguments import CalibrationTexts
from sbert_search.embed.engines.int8 import choose_fastest, open_int8
from sbert_search.embed.engines.protocol import EngineName, MovableEngine, OpenedModel
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.loading.folder import ModelDescription, ModelFolder, read_folder
from sbert_search.models.loading.identity import IN_MEMORY
from sbert_search.models.loading.resolve import ResolvedModel, resolve_model


def state_sha256(module: nn.Module) -> str:
    """Hash names, types, shapes and values of all parameters and buffers, in the order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(memoryview(data.numpy()))
    return digest.hexdigest()


PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


E = TypeVar("E", bound=MovableEngine)


def describe_object(
    model: nn.Module,
    description: ModelDescription,
    engine: E,
    asked: Mapping[str, str],
) -> OpenedModel[E]:
    """Describe the engine of a model in memory, which stays on its device and in its precision.

    ``asked`` has the caller's values of ``device``, ``precision`` and ``engine``, each the default
    or that of the model.
    """
    weights = next(model.parameters())
    if weights.dtype not in PRECISIONS:
        raise ConfigError(
            f"The weights of the model are {weights.dtype}; convert them to float32, bfloat16 or "
            "float16."
        )
    opened = OpenedModel(
        type(model).__name__,
        "in memory",
        description,
        lambda: IN_MEMORY + state_sha256(model),
        engine.tokenizer.sha256,
        engine,
        PRECISIONS[weights.dtype],
        str(weights.device),
    )
    own = {
        "device": (opened.device, weights.device.type, "auto"),
        "precision": (opened.precision, "auto"),
        "engine": (engine.name, "native"),
    }
    for name, value in asked.items():
        if value not in own[name]:
            raise ConfigError(
                f"{name} is {value!r}, but the {opened.name} in memory has {own[name][0]!r} and is "
                f"not changed; leave {name} out, or save the model and pass its folder."
            )
    return opened


def check_engine(engine: str) -> None:
    """Refuse an engine that does not use torch."""
    if engine not in ("native", "sentence-transformers"):
        raise ConfigError(
            f"The engine {engine!r} cannot run this model; use native or sentence-transformers."
        )


C = TypeVar("C", bound=MovableEngine, contravariant=True)


class CheckedChange(Protocol[C]):
    """Changes an engine and checks that its output stays nearly the same."""

    def __call__(
        self, engine: C, change: Callable[[], None], /, *, precision: str, where: str
    ) -> None:
        """Call ``change``, and refuse outputs after it that differ too much from those before it.

        The engine is on the CPU in fp32 before. ``precision``, that after the change, determines
        the largest allowed difference; ``where`` is for the message.
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

    ``load`` loads the model on the CPU in fp32, with another engine if the named one cannot compute
    it.
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
    """Load a model of a folder on the CPU in fp32, and move it to a device and a precision.

    On a CPU, the precision "auto" is the one that `MovableEngine.fastest_precision` chooses, or
    fp32 if the output in that precision fails the check.
    """
    target = resolve_device(device)
    dtype = resolve_precision(precision, target)  # refuses an unknown name before weights are read
    engine, verdict = load(), None
    if precision == "auto" and target.type == "cpu":
        verdict = engine.fastest_precision()
        dtype = dtype if verdict is None else DTYPES[verdict.choice]

    def move_and_check() -> None:
        name = PRECISIONS[dtype]
        where = f"{engine.name} on {target} in {name}"
        check(engine, lambda: engine.move(target, dtype), precision=name, where=where)

    try:
        move_and_check()
    except ModelError as error:
        if precision != "auto" or dtype == torch.float32:
            raise
        warn(f"{error} Continuing in fp32.")
        engine, dtype, verdict = load(), torch.float32, None
        move_and_check()
    return OpenedModel.from_folder(
        resolved, folder, engine, PRECISIONS[dtype], str(target), verdict=verdict
    )
