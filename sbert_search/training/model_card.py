"""Publish the trained model: a folder that other libraries load, with a model card."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sbert_search.base import files
from sbert_search.base.machine import code, library_versions, machine
from sbert_search.config import from_mapping, to_mapping, to_toml
from sbert_search.errors import CheckpointError, ConfigError
from sbert_search.models.loading.identity import sha256_of
from sbert_search.models.loading.publish import USE, USE_POOLED
from sbert_search.models.side_file import read_side_file
from sbert_search.text.sources import classify, content_sha256
from sbert_search.training.loop.checkpoint import read_checkpoint
from sbert_search.training.loop.log import LOG, LogLine, read_log
from sbert_search.training.loop.loop import Result, TrainConfig
from sbert_search.training.loop.resume import differences, effective
from sbert_search.training.recipe import Kind

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
    data: Sequence[str],
    recipe: Mapping[str, object],
    n_rows: int,
    *,
    kind: Kind = "bi-encoder",
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Copy the model of `Result.best` to a folder of its own, with a model card.

    If the run has no best checkpoint, since it computed no finite dev metric, the model of its last
    step is copied. The folder is written under a temporary name and renamed, so it is complete or
    absent. An existing folder is replaced.

    Args:
        result: How the run ended.
        folder: Where the model is published.
        data: The lines of `describe_data`, for the card.
        recipe: The resolved recipe.
        n_rows: Number of training rows, for the card.
        kind: Kind of the model; the card shows how to use a model of this kind.
        finish: Changes the files in the temporary folder before it is renamed.

    Raises:
        CheckpointError: As for `publish_copy`.
    """
    card = _card(result, result.best or result.last, data, recipe, n_rows, kind)
    publish_copy(result, folder, card, finish)


def publish_copy(
    result: Result,
    folder: Path,
    card: str | None = None,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Copy the model that `publish` copies to a folder of its own, with or without a model card.

    Args:
        result: How the run ended.
        folder: Where the model is published.
        card: Text of the model card; None: no card.
        finish: Changes the files in the temporary folder before it is renamed.

    Raises:
        CheckpointError: A file of the checkpoint is missing or damaged.
    """
    chosen = result.best or result.last
    try:
        read_checkpoint(chosen)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error} It belongs to {chosen}, whose model is to be published. Restore this folder "
            "from a copy, or train again in an empty folder; the model of the last step is in "
            f"{result.last / 'model'}."
        ) from error
    temporary = folder.with_name(folder.name + ".tmp")
    files.remove_tree(temporary)
    _copy(chosen / "model", temporary)
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
    result: Result,
    chosen: Path,
    data: Sequence[str],
    recipe: Mapping[str, object],
    n_rows: int,
    kind: Kind,
) -> str:
    state = result.state
    manifest = {
        **code(),
        "seed": recipe["seed"],
        "libraries": library_versions(),
        "machine": machine(),
    }
    return _CARD.format(
        use=_use(kind, chosen / MODEL),
        data="\n".join(data),
        rows=n_rows,
        steps=state.step,
        epochs=state.epoch,
        tokens=state.tokens,
        minutes=state.seconds / 60,
        scores=table_of_scores(read_log(result.last.parent / LOG), chosen.name),
        recipe=to_toml(recipe),
        manifest=json.dumps(manifest, indent=1),
    )


def _use(kind: Kind, model: Path) -> str:
    """Return the part of the card that shows how to use the model in a folder."""
    side = read_side_file(model)
    as_transformers = side.pooling == "cls" and not side.unit_length
    return USE[kind] if as_transformers else USE_POOLED


def describe_data(data: Sequence[Path], recipe: Mapping[str, object]) -> list[str]:
    """Return lines of the model card: name and SHA-256 of each training file and the dev file."""
    named = [("train", path) for path in data]
    match recipe["data"]:
        case {"dev": str(dev)}:
            named.append(("dev", Path(dev)))
    return [f"- {use}: `{path.name}`, sha256 `{_sha256(path)}`" for use, path in named]


def changes(folder: Path, recipe: TrainConfig, data: Sequence[Path]) -> list[str]:
    """Describe how a recipe differs from that of a published model, and which data have changed.

    Args:
        folder: Folder of the published model; without a model card, nothing is compared.
        recipe: The recipe.
        data: Its training files.
    """
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
    return differences(effective(saved), effective(values)) + [f"data are now {n[2:]}" for n in new]


def _sha256(path: Path) -> str:
    """Hash a file, or the files of a folder that are read as data."""
    return sha256_of(path) if path.is_file() else content_sha256([classify(path)])


def table_of_scores(log: Sequence[LogLine], chosen: str) -> str:
    """Return the dev metrics of a run as a Markdown table; a sentence if there are none.

    Args:
        log: The log of the run.
        chosen: Name of the folder of the published checkpoint; its line in the table is marked.
    """
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
