"""Going on from a checkpoint: with what it was made, or not at all."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sbert_search.config import from_mapping
from sbert_search.errors import CheckpointError, ConfigError
from sbert_search.runtime.disk.same_file import same_file
from sbert_search.runtime.progress import note
from sbert_search.training.loop.checkpoint import checkpoints, newest_checkpoint
from sbert_search.training.loop.gradients import StepContext
from sbert_search.training.loop.optim import restore_optimizer
from sbert_search.training.loop.state import RunState
from sbert_search.version import __version__

_WRITTEN = ("log.jsonl", "curves.svg", "model", "model.tmp")  # in the folder of a run
_HARMLESS = ("checkpoint", "report")  # tables of a recipe that change no weight


def run_fingerprint(recipe: Mapping[str, Any], data: str, context: StepContext) -> dict[str, Any]:
    """List all that the weights of a run depend on, as JSON can hold it."""
    return {
        "recipe": _steering(recipe),
        "data": data,
        "threads": torch.get_num_threads(),
        "ranks": context.ranks.world,
        "device": context.device.type,
        "precision": str(context.dtype).removeprefix("torch."),
        "versions": {
            "numpy": np.__version__,
            "python": platform.python_version(),
            "sbert-search": __version__,
            "torch": torch.__version__,
        },
    }


def refuse_restart(out: Path, recipe: Mapping[str, Any]) -> None:
    """Refuse to start from step 0 where a run has left checkpoints, or over what the run reads.

    Raises:
        CheckpointError: There are checkpoints.
        ConfigError: A file or folder that the run writes is one that its recipe names.
    """
    if there := checkpoints(out):
        raise CheckpointError(
            f"{out} holds a run that got to {there[-1].name}. Go on with it by --resume {out} "
            "(resume=True), or train into another folder."
        )
    for path in filter(Path.exists, map(Path, _texts(recipe))):
        for name in _WRITTEN:
            if same_file(out / name, [path, *path.resolve().parents]):
                raise ConfigError(
                    f"The run would overwrite {out / name}, of which its recipe names {path}. "
                    "Train into another folder."
                )


def restore(
    out: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    now: Mapping[str, Any],
    *,
    allow_inexact: bool,
) -> RunState:
    """Bring model and optimizer to where the newest undamaged checkpoint has them.

    Args:
        out: Folder of the run.
        model: Of the same shapes; its parameters are overwritten.
        optimizer: Over the model's parameters.
        now: The `run_fingerprint` of this process.
        allow_inexact: Go on although these differ, so that the weights will not be those of an
            uninterrupted run.

    Raises:
        CheckpointError: No usable checkpoint, one of another model, or other run_fingerprint.
    """
    checkpoint = newest_checkpoint(out)
    differing = differences(checkpoint.state["circumstances"], now)
    if differing:
        said = f"{checkpoint.path} was made with other settings: {'; '.join(differing)}."
        if not allow_inexact:
            raise CheckpointError(
                f"{said} Restore them, or go on inexactly by --allow-inexact (allow_inexact=True)."
            )
        note(f"{said} Going on inexactly.")
    _restore_model(model, checkpoint.tensors("model"))
    restore_optimizer(optimizer, model, checkpoint.tensors("optim"))
    return from_mapping(RunState, checkpoint.state["run"])


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Name every parameter once, under its first name if it is shared, and every saved buffer."""
    shared = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name: t for name, t in model.state_dict().items() if name not in shared}
    return {**dict(model.named_parameters()), **buffers}


def differences(then: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """Say what differs between two nested mappings, value by value."""
    found = []
    for name in sorted({*then, *now}):
        before, after = then.get(name), now.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{path}{name}.")
        elif before != after:
            found.append(f"{path}{name} was {before!r}, is {after!r}")
    return found


def _texts(values: Mapping[str, Any] | Sequence[Any]) -> Iterator[str]:
    """Find every text of a recipe: file names are among them."""
    for value in values.values() if isinstance(values, Mapping) else values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (Mapping, list, tuple)):
            yield from _texts(value)


def _steering(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _steering(value) if isinstance(value, Mapping) else value
        for name, value in recipe.items()
        if not (name in _HARMLESS and isinstance(value, Mapping))
    }


@torch.no_grad()
def _restore_model(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    own = model_tensors(model)
    unlike = [n for n in {*own, *saved} if n not in own or n not in saved]
    unlike += [n for n in own if n in saved and own[n].shape != saved[n].shape]
    if unlike:
        raise CheckpointError(
            f"The checkpoint is of another model: {', '.join(sorted(unlike)[:5])} "
            f"({len(unlike)} tensors) do not fit."
        )
    for name, tensor in own.items():
        tensor.copy_(saved[name])
