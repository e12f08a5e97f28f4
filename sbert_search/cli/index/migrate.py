"""`index migrate`: change the model of an index while it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from sbert_search.cli.console import emit, say, show_facts, size_text
from sbert_search.cli.options.shared import (
    Finite,
    embedder_options,
    index_folder,
    model_options,
    refuse_typed,
    shared_options,
)
from sbert_search.config import to_mapping

if TYPE_CHECKING:
    from sbert_search.index.index import Index

Step = Literal["dry_run", "rollback", "finish", "abandon"]


@click.command()
@index_folder
@click.option(
    "--dry-run", "step", flag_value="dry_run", help="Predict time and space; change nothing."
)
@click.option("--rollback", "step", flag_value="rollback", help="Switch back to the model before.")
@click.option(
    "--finish", "step", flag_value="finish", help="Remove the vectors of the model before."
)
@click.option(
    "--abandon", "step", flag_value="abandon", help="Remove the vectors of a begun migration."
)
@click.option(
    "--switch/--no-switch",
    default=True,
    show_default=True,
    help="Search with the new model as soon as all vectors are there.",
)
@click.option("--max-minutes", type=Finite(0), help="Stop at a commit after this time.")
@embedder_options
@shared_options("memory", "wait", "quiet", "json")
@click.pass_context
def migrate(
    ctx: click.Context,
    /,
    path: Path,
    step: Step | None,
    switch: bool,
    max_minutes: float | None,
    model: str | None,
    wait_s: float,
    as_json: bool,
    **_: object,
) -> None:
    """Embed the passages of DIR with another model, then switch to it.

    Searches and updates go on with the old model until one commit switches to the new one. The same
    command resumes after an interruption. The old vectors stay until --finish, so that --rollback
    can go back to them. `index info` shows a migration that is under way.
    """
    from sbert_search.index.index import Index

    index = Index.open(path, wait_s=wait_s)
    if step in ("finish", "abandon", "rollback"):
        names = {"switch", "max_minutes", "model"}
        refuse_typed(ctx, names, f"with --{step}")
    elif model is None:
        raise click.UsageError("Name the new model with --model.")
    if step == "dry_run":
        assert model is not None
        plan = index.plan_migration(model, **model_options(ctx))
        if as_json:
            return emit(to_mapping(plan))
        return show_facts(
            {
                "passages": plan.passages,
                "tokens": f"about {plan.tokens:,}",
                "time": f"about {plan.minutes:,.1f} minutes on this machine",
                "space": f"{size_text(plan.size_bytes)} beside the old vectors",
                **{name: f"{old} -> {new}" for name, (old, new) in plan.changes.items()},
            }
        )
    if step in ("finish", "abandon"):
        return _drop(index, step, as_json=as_json)
    if step == "rollback":
        report = index.roll_back(**model_options(ctx))
    else:
        assert model is not None
        options = model_options(ctx)
        report = index.migrate(model, switch=switch, max_minutes=max_minutes, **options)
    if as_json:
        return emit({"index": str(path), **to_mapping(report)})
    done = f"{report.embedded:,} passages embedded in {report.seconds:,.0f} s"
    if report.switched:
        back = "`--rollback` goes back, `--finish` removes the old vectors"
        return say(f"{done}. {path} is searched with {report.model} now; {back}.")
    if report.left:
        return say(f"{done}, {report.left:,} left; the same command resumes.")
    say(f"{done}. The vectors of {report.model} are complete; --switch uses them.")


def _drop(index: Index, step: Step, *, as_json: bool) -> None:
    info = index.info()
    wanted = {"finish": info.migrated_from, "abandon": info.migrating_to}
    if not wanted[step]:
        state = "has no vectors of a model before" if step == "finish" else "is in no migration"
        raise click.UsageError(f"{index.path} {state}.")
    dropped = index.drop_unused_vectors()
    if as_json:
        return emit({"index": str(index.path), "dropped": dropped})
    say(f"The vectors of {', '.join(dropped)} are removed.")
