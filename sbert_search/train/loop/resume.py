"""Resume a run from a checkpoint if both have the same fingerprint, as have all ranks.

The fingerprint is everything that the weights depend on: recipe, data, dev data, threads, ranks,
device, precision and library versions.
"""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sbert_search.base.distributed import Ranks
from sbert_search.base.folders import first_same_file
from sbert_search.base.progress import note, warn
from sbert_search.config import from_mapping
from sbert_search.errors import CheckpointError, ConfigError, TrainingError
from sbert_search.train.loop.checkpoint import Checkpoint, checkpoints, newest_checkpoint
from sbert_search.train.loop.gradients import StepContext
from sbert_search.train.loop.optim import restore_optimizer
from sbert_search.train.loop.schedule import RunState
from sbert_search.version import __version__

_WRITTEN = ("log.jsonl", "curves.svg", "model", "model.tmp")  # what a run replaces in its folder
_DEV = "dev data"  # key of the checksum of the dev data in a fingerprint
# If one of these differs, the best dev metric so far cannot be compared with later ones.
_COMPARED = (_DEV, "recipe.evaluation.figure", "recipe.evaluation.higher_is_better")
_NO_EFFECT = ("checkpoint", "report")  # tables of a recipe that do not affect the weights


def run_fingerprint(
    recipe: Mapping[str, object], data: str, context: StepContext, dev: str = ""
) -> dict[str, object]:
    """Collect, as JSON values, what determines the weights of a run; dev data choose the best."""
    return {
        "recipe": tables_that_affect_weights(recipe),
        "data": data,
        _DEV: dev,
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


def goes_on(ranks: Ranks, out: Path, recipe: Mapping[str, object]) -> bool:
    """Whether a folder has a run with this recipe, which a repeated command resumes.

    A finished run is resumed at its end, so its result is returned again. Every rank makes this
    call.
    """
    same = ranks.first and bool(checkpoints(out)) and not _changed_settings(out, recipe)
    if same:
        note(f"{out} holds a run with the same settings; it is resumed where it ended.")
    return bool(ranks.from_first([float(same)])[0])


def _changed_settings(out: Path, recipe: Mapping[str, object]) -> list[str]:
    saved = _table(newest_checkpoint(out), "circumstances").get("recipe")
    current = tables_that_affect_weights(recipe)
    return differences(saved, current) if isinstance(saved, Mapping) else ["its settings are lost"]


def refuse_restart(out: Path, recipe: Mapping[str, object]) -> None:
    """Refuse to start a run that would overwrite another run's checkpoints or files of the user.

    A folder ``model`` with no log beside it is the user's. Names of files must be UTF-8, as the
    saved recipe and safetensors are.
    """
    for text in (str(out), *_strings(recipe)):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"The name {text!r} is not UTF-8; rename the file or the folder."
            ) from None
    if existing := checkpoints(out):
        changed = "; ".join(_changed_settings(out, recipe))
        others = f", with other settings: {changed}" if changed else ""
        raise CheckpointError(
            f"{out} holds a run that got to {existing[-1].name}{others}. Train into "
            f"another folder, or resume that run with --resume {out} (resume=True)."
        )
    for path in map(Path, filter(os.path.exists, _strings(recipe))):
        for name in _WRITTEN:
            if first_same_file(out / name, [path, *path.resolve().parents]):
                raise ConfigError(
                    f"The run would overwrite {out / name}, and its recipe reads {path}. "
                    "Train into another folder."
                )
    if (out / "model").exists() and not (out / "log.jsonl").exists():
        raise ConfigError(
            f"{out / 'model'} is of no training run, and the run would replace it by its own "
            "model. Train into another folder, or move it away."
        )


def restore(
    checkpoint: Checkpoint,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    current: Mapping[str, object],
    *,
    allow_inexact: bool,
) -> RunState:
    """Load model and optimizer from a checkpoint, and return the progress of its run.

    Another fingerprint is refused, or with ``allow_inexact`` only warned of.
    """
    # "circumstances" is the `run_fingerprint` of the saved run.
    saved = _table(checkpoint, "circumstances")
    changed = differences(saved, current)
    if changed:
        problem = f"{checkpoint.path} was made with other settings: {'; '.join(changed)}."
        if not allow_inexact:
            raise CheckpointError(
                f"{problem} Restore them, or resume inexactly with --allow-inexact "
                "(allow_inexact=True)."
            )
        warn(f"{problem} Resuming inexactly.")
    _restore_model(model, checkpoint.tensors("model"))
    restore_optimizer(optimizer, model, checkpoint.tensors("optim"))
    state = from_mapping(RunState, _table(checkpoint, "run"))
    if any(name in _COMPARED for name, _, _ in iter_differences(saved, current)):
        state.best, state.best_step, state.stale = None, None, 0
    return state


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters, shared ones by the first of their names, and all saved buffers."""
    shared = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name: t for name, t in model.state_dict().items() if name not in shared}
    return {**dict(model.named_parameters()), **buffers}


def differences(saved: Mapping[str, object], current: Mapping[str, object]) -> list[str]:
    """Describe every differing value of two nested mappings."""
    return [
        f"{name} was {before!r}, is {after!r}"
        for name, before, after in iter_differences(saved, current)
    ]


def iter_differences(
    one: Mapping[str, object], other: Mapping[str, object], path: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Yield the dotted name and both values of every difference of two nested mappings."""
    for name in sorted({*one, *other}):
        left, right = one.get(name), other.get(name)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from iter_differences(left, right, f"{path}{name}.")
        elif left != right:
            yield f"{path}{name}", left, right


def _table(checkpoint: Checkpoint, name: str) -> Mapping[str, object]:
    table = checkpoint.state.get(name)
    if not isinstance(table, Mapping):
        raise CheckpointError(
            f"{checkpoint.path} has no table {name!r} in its state. Start again in an empty folder."
        )
    return table


def _strings(values: Mapping[str, object] | Sequence[object]) -> Iterator[str]:
    """Yield every string of a recipe; all file names are among them."""
    for value in values.values() if isinstance(values, Mapping) else values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (Mapping, list, tuple)):
            yield from _strings(value)


def tables_that_affect_weights(recipe: Mapping[str, object]) -> dict[str, object]:
    """Copy a recipe without the tables that do not affect the weights."""
    return {
        name: tables_that_affect_weights(value) if isinstance(value, Mapping) else value
        for name, value in recipe.items()
        if not (name in _NO_EFFECT and isinstance(value, Mapping))
    }


@torch.no_grad()
def _restore_model(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    current = model_tensors(model)
    mismatched = [n for n in {*current, *saved} if n not in current or n not in saved]
    mismatched += [n for n in current if n in saved and current[n].shape != saved[n].shape]
    if mismatched:
        raise CheckpointError(
            f"The checkpoint is of another model: {', '.join(sorted(mismatched)[:5])} "
            f"({len(mismatched)} tensors) do not fit."
        )
    for name, tensor in current.items():
        tensor.copy_(saved[name])


_MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"  # set by torchrun
_SHOWN = 5  # largest number of differences in a message


def require_agreement(ranks: Ranks, settings: Mapping[str, object]) -> None:
    """Refuse ranks with other JSON values than rank 0; every rank calls this and raises alike."""
    if ranks.world == 1:
        return
    hosts = ranks.gather_values(socket.gethostname())
    first, *others = ranks.gather_values(settings)
    for rank, other in enumerate(others, start=1):
        assert isinstance(first, dict)
        assert isinstance(other, dict)
        lines = [
            f"{name} is {_short(left)} on rank 0 and {_short(right)} on rank {rank}"
            for name, left, right in iter_differences(first, other)
        ]
        if lines:
            more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
            raise TrainingError(
                f"Rank {rank} (on {hosts[rank]}) does not train the same as rank 0 (on "
                f"{hosts[0]}): {'; '.join(lines[:_SHOWN])}{more}. Start all ranks with the same "
                "command, files and versions."
            )


def resumes(ranks: Ranks, out: Path) -> bool:
    """Whether a run resumes by itself: torchrun may have restarted it, and it has a checkpoint.

    torchrun restarts the ranks with the command that began the run. The number of restarts so far
    does not show it: it is 0 on a machine that replaces another. Every rank makes this call.
    """
    if int(os.environ.get(_MAX_RESTARTS, "0")) == 0:
        return False
    return bool(ranks.from_first([bool(checkpoints(out))])[0])


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
