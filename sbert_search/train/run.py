"""Start a run under a lock, train, and publish the model with a model card, for all kinds alike."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sbert_search.base import files
from sbert_search.base.distributed import Ranks, join_ranks
from sbert_search.base.locks import LockHeld, exclusive_lock
from sbert_search.base.machine import code, library_versions, machine
from sbert_search.config import from_mapping, to_mapping, to_toml
from sbert_search.errors import CheckpointError, ConfigError
from sbert_search.models.loading.identity import sha256_of
from sbert_search.models.loading.publish import USE, USE_POOLED
from sbert_search.models.side_file import read_side_file
from sbert_search.text.sources import classify, content_sha256
from sbert_search.train.loop.checkpoint import read_checkpoint
from sbert_search.train.loop.log import LOG, LogLine, read_log
from sbert_search.train.loop.loop import Result, TrainConfig
from sbert_search.train.loop.loop import train as run_loop
from sbert_search.train.loop.objective import Batches, InBatchObjective, Objective
from sbert_search.train.loop.resume import (
    differences,
    goes_on,
    refuse_restart,
    require_agreement,
    resumes,
    tables_that_affect_weights,
)
from sbert_search.train.loop.schedule import DevMetrics
from sbert_search.train.loop.step import Penalties
from sbert_search.train.recipe import Kind

MODEL = "model"  # folder of the published model, inside the folder of the run

_CARD = """---
{use}
## Data

{data}

{rows:,} rows; {steps:,} steps, {epochs} full epochs, {tokens:,} tokens, {minutes:.1f} minutes.

## Scores on the dev data

{scores}

## Recipe

```toml
{recipe}```

## Manifest

```json
{manifest}
```
"""


def publish(
    result: Result,
    folder: Path,
    card: str | None = None,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Copy the model of `Result.best`, or else of the last step, to a folder of its own.

    The folder is written under a temporary name, changed by ``finish``, and renamed over an
    existing one, so it is complete or absent. ``card`` None: it has no model card.
    """
    chosen = result.best or result.last
    try:
        read_checkpoint(chosen)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error} It belongs to {chosen}, whose model is to be published. Restore this folder "
            "from a copy, or train again in an empty folder; the model of the last step is in "
            f"{result.last / MODEL}."
        ) from error
    temporary = folder.with_name(folder.name + ".tmp")
    files.remove_tree(temporary)
    _copy(chosen / MODEL, temporary)
    if finish is not None:
        finish(temporary)
    if card is not None:
        files.write_new(temporary / "README.md", card.encode())
    files.disk.fsync_folder(temporary)
    files.remove_tree(folder)
    files.disk.replace(temporary, folder)
    files.disk.fsync_folder(folder.parent)


def _copy(source: Path, target: Path) -> None:
    files.disk.make_folder(target)
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            _copy(entry, target / entry.name)
        else:
            files.write_new(target / entry.name, files.map_file(entry))
    files.disk.fsync_folder(target)


def _card(
    result: Result, training: Training, recipe: Mapping[str, object], data: Sequence[str]
) -> str:
    """Write the model card of the model that `publish` copies; ``data`` as of `describe_data`."""
    state, chosen = result.state, result.best or result.last
    side = read_side_file(chosen / MODEL)
    as_transformers = side.pooling == "cls" and not side.unit_length
    manifest = {
        **code(),
        "seed": recipe["seed"],
        "libraries": library_versions(),
        "machine": machine(),
    }
    return _CARD.format(
        use=USE[training.kind] if as_transformers else USE_POOLED,
        data="\n".join(data),
        rows=training.n_rows,
        steps=state.step,
        epochs=state.epoch,
        tokens=state.tokens,
        minutes=state.seconds / 60,
        scores=table_of_scores(read_log(result.last.parent / LOG), chosen.name),
        recipe=to_toml(recipe),
        manifest=json.dumps(manifest, indent=1),
    )


def describe_data(data: Sequence[Path], recipe: Mapping[str, object]) -> list[str]:
    """Return lines of the model card: name and SHA-256 of each training file and the dev file."""
    named = [("train", path) for path in data]
    match recipe["data"]:
        case {"dev": str(dev)}:
            named.append(("dev", Path(dev)))
    return [f"- {use}: `{path.name}`, sha256 `{_sha256(path)}`" for use, path in named]


def recipe_changes(folder: Path, recipe: TrainConfig, data: Sequence[Path]) -> list[str]:
    """Describe how a recipe differs from that of a published model, and which data have changed."""
    try:
        card = (folder / "README.md").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    values, found = to_mapping(recipe), re.search(r"^```toml\n(.*?)^```$", card, re.M | re.S)
    if found is None:
        return [f"the recipe in {folder / 'README.md'} cannot be read"]
    try:
        saved = to_mapping(from_mapping(type(recipe), tomllib.loads(found[1])))
    except (ConfigError, ValueError) as error:
        return [f"the recipe in {folder / 'README.md'} cannot be read: {error}"]
    lines = set(card.splitlines())
    new = [line for line in describe_data(data, values) if line not in lines]
    return differences(tables_that_affect_weights(saved), tables_that_affect_weights(values)) + [
        f"data are now {n[2:]}" for n in new
    ]


def _sha256(path: Path) -> str:
    return sha256_of(path) if path.is_file() else content_sha256([classify(path)])


def table_of_scores(log: Sequence[LogLine], chosen: str) -> str:
    """Return the dev metrics as a Markdown table that marks the checkpoint named ``chosen``."""
    evaluations = [line for line in log if line["kind"] == "dev"]
    if not evaluations:
        step = int(chosen.rpartition("-")[2])
        return (
            "None: the log of the run has no evaluation on dev data. "
            f"This is the model of step {step:,}."
        )
    # If a run resumes with dev data of another form, its later evaluations have other metrics.
    names = list(dict.fromkeys(name for line in evaluations for name in line["figures"]))
    lines = [f"| step | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for line in evaluations:
        figures = line["figures"]
        shown = " | ".join(f"{figures[name]:.4f}" if name in figures else "-" for name in names)
        mark = " (this model)" if chosen.endswith(f"-{line['step']:08d}") else ""
        lines.append(f"| {line['step']:,}{mark} | {shown} |")
    return "\n".join(lines)


LOCK = "LOCK"


@contextmanager
def sole_run(out: Path, ranks: Ranks) -> Iterator[None]:
    """Hold the lock of a run's folder. The first rank creates the folder and locks it.

    A folder that cannot be locked, as on some network file systems, is used without a lock. A new
    folder is removed at the end if the run wrote nothing to it, such as after an error in its data.
    """
    with ExitStack() as stack:
        if ranks.first:
            with suppress(OSError):
                existed = out.exists()
                out.mkdir(parents=True, exist_ok=True)
                try:
                    stack.enter_context(exclusive_lock(out / LOCK))
                except LockHeld as error:
                    raise CheckpointError(
                        f"Another run writes to {out}: {error.holder}. "
                        "Wait until it ends or stop it, or train into another folder."
                    ) from error
                if not existed:
                    stack.callback(_remove_if_unused, out)
        yield


def _remove_if_unused(out: Path) -> None:
    with suppress(OSError):
        if [file.name for file in out.iterdir()] == [LOCK]:
            files.remove_tree(out)


@dataclass(frozen=True, eq=False, kw_only=True)
class Training:
    """What a run trains, with which loss and data, and how its model is published."""

    kind: Kind
    model: nn.Module
    objective: Objective | InBatchObjective
    batches: Batches
    save_model: Callable[[Path], object]  # writes the model into a new folder
    dev: DevMetrics | None = None  # None: there are no dev data
    files: Sequence[Path] = ()  # of the training data, for the model card; (): there is no card
    n_rows: int = 0  # for the model card
    penalties: Penalties | None = None  # as for `train.loop.loop.train`
    # Fits settings such as a temperature to the dev data, if these are enough to choose by, and
    # stores them in the published folder.
    calibrate: Callable[[Path], None] | None = None


@dataclass(kw_only=True)
class Run:
    """A run that has joined its ranks and locked its folder."""

    recipe: TrainConfig
    out: Path
    ranks: Ranks
    resume: bool
    allow_inexact: bool

    def train(self, training: Training) -> Result:
        """Train, and publish in ``out/model`` the best model, or the last one if none is best."""
        settings = to_mapping(self.recipe)
        # Files are hashed before the run, since they may be changed or deleted while it runs.
        described = self.ranks.first and training.files
        data = describe_data(training.files, settings) if described else []
        result = run_loop(
            training.objective,
            training.batches,
            self.recipe,
            model=training.model,
            out=self.out,
            evaluate=training.dev,
            save_model=training.save_model,
            penalties=training.penalties,
            recipe=settings,
            resume=self.resume,
            allow_inexact=self.allow_inexact,
        )
        if self.ranks.first:
            card = _card(result, training, settings, data) if described else None
            may_fit = training.dev is not None and training.dev.can_choose
            publish(result, self.out / MODEL, card, training.calibrate if may_fit else None)
        self.ranks.wait()
        return result


@contextmanager
def start_run(
    recipe: TrainConfig, out: Path, *, resume: bool, allow_inexact: bool
) -> Iterator[Run]:
    """Join the ranks of a run, lock its folder, and refuse to overwrite another run.

    The run is resumed by ``resume``, by torchrun, or if it has the same recipe.
    """
    settings = to_mapping(recipe)
    with join_ranks() as ranks, sole_run(out, ranks):
        # Under the lock, so that no other run adds a checkpoint later.
        require_agreement(ranks, {"recipe": settings, "out": str(out), "resume": resume})
        resume = resume or resumes(ranks, out) or goes_on(ranks, out, settings)
        if not resume:
            refuse_restart(out, settings)
        yield Run(recipe=recipe, out=out, ranks=ranks, resume=resume, allow_inexact=allow_inexact)
