"""What the commands that train share: a recipe, where its run goes, and what is told at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from sbert_search.cli.console import emit, show_facts
from sbert_search.cli.shared_options import given, shared_options
from sbert_search.training.recipe import Kind, load_recipe, shipped_recipes

if TYPE_CHECKING:
    from sbert_search.training.loop.loop import Result

Command = Callable[..., Any]
R = TypeVar("R", contravariant=True)

_IN_RECIPES = ("device", "precision", "seed")  # options that are settings of every recipe


class Trainer(Protocol[R]):
    """Trains by a recipe: `training.loop.train` with everything that the recipe names."""

    def __call__(self, recipe: R, out: Path, /, *, resume: bool, allow_inexact: bool) -> Result:
        """Train into the folder ``out``, or go on with the run that is there."""


def training_command(kind: Kind) -> Callable[[Command], click.Command]:
    """Make a command, named after what is trained, with all that `train_by_recipe` reads."""

    def decorate(function: Command) -> click.Command:
        for parameter in reversed(_PARAMETERS):
            function = parameter(function)
        shipped = ", ".join(shipped_recipes(kind)) or "none"
        epilog = f"Shipped recipes: {shipped}. A RECIPE that ends in .toml is a file."
        return click.command(kind, epilog=epilog)(function)

    return decorate


_PARAMETERS: tuple[Callable[[Command], Command], ...] = (
    click.argument("recipe", required=False),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="NAME=VALUE",
        help="Change a setting, such as optim.lr=2e-5; may be repeated.",
    ),
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of the run: checkpoints, log, curves.  [default: runs/RECIPE]",
    ),
    click.option(
        "--resume",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Go on from the newest checkpoint of a run, by its own recipe unless one is given.",
    ),
    shared_options("device", "precision", "seed", "allow-inexact", "quiet", "json"),
)


def train_by_recipe(kind: Kind, settings: type[R], trainer: Trainer[R]) -> None:
    """Read the recipe that this command was given, train by it, and tell how it ended.

    Args:
        kind: Whose recipes are meant.
        settings: Dataclass of such a recipe, a `training.loop.TrainConfig`.
        trainer: What is done with it.

    Raises:
        ConfigError: No such recipe or setting.
        CheckpointError: There is no checkpoint to go on from.
    """
    ctx = click.get_current_context()
    options = ctx.params
    recipe, out = _sources(options)
    chosen = [f"{name}={value}" for name, value in given(ctx).items() if name in _IN_RECIPES]
    result = trainer(
        load_recipe(settings, kind, recipe, [*options["overrides"], *chosen]),
        out,
        resume=options["resume"] is not None,
        allow_inexact=options["allow_inexact"],
    )
    if os.environ.get("RANK", "0") == "0":  # under torchrun only the first rank tells
        facts = _facts(result)
        emit(facts) if options["as_json"] else show_facts(_flat(facts))


def _sources(options: Mapping[str, Any]) -> tuple[str, Path]:
    """Find the recipe, and the folder of the run."""
    recipe, out, resume = options["recipe"], options["out"], options["resume"]
    if resume is None:
        if recipe is None:
            raise click.UsageError("Name a RECIPE, or a run to go on with by --resume.")
        return recipe, out or Path("runs", Path(recipe).stem)
    if out not in (None, resume):
        raise click.UsageError("A run goes on in its own folder; leave --out away.")
    from sbert_search.training.loop.checkpoint import newest_checkpoint

    return recipe or str(newest_checkpoint(resume).path / "recipe.toml"), resume


def _facts(result: Result) -> dict[str, Any]:
    """Say how a run ended, with the dev figures of its last evaluation."""
    from sbert_search.training.loop.report import LOG, read_log

    state, run = result.state, result.last.parent
    evaluations = [r for r in read_log(run / LOG) if r["kind"] == "dev"]
    published, kept = run / "model", (result.best or result.last) / "model"
    return {
        "stopped": result.stopped,
        "steps": state.step,
        "epochs": state.epoch,
        "tokens": state.tokens,
        "minutes": state.seconds / 60,
        "figures": evaluations[-1]["figures"] if evaluations else {},
        "last": str(result.last),
        "best": None if result.best is None else str(result.best),
        "best_figure": state.best,
        "model": str(published if published.is_dir() else kept),
    }


def _flat(facts: Mapping[str, Any]) -> dict[str, object]:
    """Lay the dev figures beside the other facts."""
    plain = {name: value for name, value in facts.items() if name != "figures"}
    return {**plain, **{f"dev {name}": value for name, value in facts["figures"].items()}}
