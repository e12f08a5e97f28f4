"""Checkpoints: folders that are complete or absent, verified before they are used.

A checkpoint is written as ``ckpt-00000120.tmp``, made durable (fsync) and renamed. A folder without
``.tmp`` is complete, so the names of the folders alone say which one is the newest. Its files:

    state.json           progress of the run; its fingerprint, which is everything that the weights
                         depend on; the measurement that chose the precision; size and digest of
                         every other file
    state.safetensors    parameters and buffers (model/...), optimizer state (optim/...)
    recipe.toml          the resolved recipe, which can be passed to a new run
    model/               the model, as a folder that other libraries load

Reading a checkpoint never runs code: the files are JSON, safetensors and TOML.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import xxhash
from safetensors import safe_open
from torch import Tensor

from sbert_search.base import files
from sbert_search.base.progress import warn
from sbert_search.base.tensors import write_tensors
from sbert_search.declared import Bounds, check
from sbert_search.errors import CheckpointError

FORMAT = 1  # version of this file format
_NAME = re.compile(r"ckpt-(\d{8})")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """When to save, and how many checkpoints to keep.

    The last step and each step with a new best dev metric are always saved.
    """

    # Steps between checkpoints; None: save after every epoch.
    every: Annotated[int | None, Bounds(1)] = None
    # Newest checkpoints kept, besides the one with the best dev metric.
    keep: Annotated[int, Bounds(1)] = 2

    def __post_init__(self) -> None:
        check(self, table="checkpoint.")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose files were all verified."""

    path: Path
    state: Mapping[str, object]  # as given to `save_checkpoint`

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return _step(self.path)

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Read the tensors saved under ``prefix/``; the file is memory-mapped."""
        with safe_open(self.path / "state.safetensors", framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix + "/")]  # noqa: SIM118
            return {name.removeprefix(prefix + "/"): file.get_tensor(name) for name in names}


def save_checkpoint(
    out: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, object],
    recipe: str,
    save_model: Callable[[Path], object] | None,
) -> Path:
    """Write a checkpoint; it is complete once its folder has its final name.

    ``tensors`` are named ``model/NAME`` and ``optim/STATE/NAME``. ``save_model`` writes the model
    into a new folder, durably through `base.files`; None: the checkpoint has no folder ``model``.
    If a write fails (CheckpointError), earlier checkpoints are untouched.
    """
    final = checkpoint_path(out, step)
    temporary = final.with_name(final.name + ".tmp")
    try:
        for unfinished in out.glob("ckpt-*.tmp"):
            files.remove_tree(unfinished)
        files.disk.make_folder(temporary)
        write_tensors(temporary / "state.safetensors", tensors)
        files.write_new(temporary / "recipe.toml", recipe.encode())
        if save_model is not None:
            save_model(temporary / "model")
        _write_state(temporary, state)
        for folder in (*(p for p in temporary.rglob("*") if p.is_dir()), temporary):
            files.disk.fsync_folder(folder)
        files.remove_tree(final)  # exists only if it was damaged when the run resumed
        files.disk.replace(temporary, final)
        files.disk.fsync_folder(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            files.remove_tree(temporary)
        kept = [path.name for path in checkpoints(out)]
        raise CheckpointError(
            f"{final} could not be written: {error}. "
            f"{'Kept: ' + ', '.join(kept) if kept else 'There is no earlier checkpoint'}."
        ) from error
    return final


def remove_old_checkpoints(out: Path, keep: int, step: int, best_step: int | None) -> None:
    """Remove all checkpoints up to ``step`` but the newest ``keep`` and that of ``best_step``."""
    try:
        # Those of later steps stay: they were damaged, so the run resumed from an earlier step.
        for path in [p for p in checkpoints(out) if _step(p) <= step][:-keep]:
            if _step(path) != best_step:
                doomed = path.with_name(path.name + ".tmp")
                files.disk.replace(path, doomed)  # a partly removed folder must not look complete
                files.remove_tree(doomed)
    except OSError as error:
        warn(f"An old checkpoint could not be removed: {error}.")


def newest_checkpoint(out: Path) -> Checkpoint:
    """Find the newest undamaged checkpoint, and warn of each newer, damaged one.

    Without any, it raises CheckpointError: a resumed run never silently starts anew.
    """
    problems = []
    for path in reversed(checkpoints(out)):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            problems.append(str(error))
            warn(f"{error} Trying the previous checkpoint.")
    none = f"{out} has no usable checkpoint to resume from."
    raise CheckpointError(" ".join([none, *problems, "Start again in an empty folder."]))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the state of a checkpoint and verify all its files, or raise a CheckpointError."""
    state_file = path / "state.json"
    try:
        record = json.loads(state_file.read_bytes())
        digest, content = record["xxh3_128"], record["content"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{state_file} is damaged: {error}.") from error
    if digest != _digest(content):
        raise CheckpointError(f"{state_file} is damaged: its checksum does not match its content.")
    if content["format"] != FORMAT:
        raise CheckpointError(
            f"{path} has format {content['format']}; this version reads {FORMAT}."
        )
    for name, expected in content["files"].items():
        try:
            got = _measure(path / name)
        except OSError as error:
            raise CheckpointError(f"{path / name} is damaged: {error}.") from error
        if got != expected:
            raise CheckpointError(f"{path / name} is damaged: expected {expected}, got {got}.")
    return Checkpoint(path, content["state"])


def checkpoints(out: Path) -> list[Path]:
    """List the complete checkpoints of a run, oldest first."""
    return sorted(p for p in out.glob("ckpt-*") if _NAME.fullmatch(p.name) and p.is_dir())


def checkpoint_path(out: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return out / f"ckpt-{step:08d}"


def _step(path: Path) -> int:
    return int(path.name.removeprefix("ckpt-"))


def _write_state(folder: Path, state: Mapping[str, object]) -> None:
    written = sorted(p for p in folder.rglob("*") if p.is_file())
    content = {
        "format": FORMAT,
        "state": state,
        "files": {p.relative_to(folder).as_posix(): _measure(p) for p in written},
    }
    record = {"xxh3_128": _digest(content), "content": content}
    files.write_new(folder / "state.json", json.dumps(record, indent=1).encode())


def _digest(content: object) -> str:
    return xxhash.xxh3_128(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _measure(path: Path) -> dict[str, int | str]:
    return {"bytes": path.stat().st_size, "xxh3_128": files.xxh3_128_of(path)}
