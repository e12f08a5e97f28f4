"""`analyze variants`: pre-train encoder families with an equal budget, and compare them."""

from __future__ import annotations

from pathlib import Path

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.options.shared import Finite, shared_options
from sbert_search.lab.commands.options import FOLDER


@click.command()
@click.argument(
    "recipe", metavar="RECIPE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--out", type=FOLDER, required=True, help="Folder for the report and the runs.")
@click.option(
    "--data",
    type=FOLDER,
    default="data",
    show_default=True,
    help="Folder of the data sets, for which @/ stands in RECIPE.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Number of runs of each family.",
)
@click.option(
    "--minutes",
    type=Finite(min=0),
    help="Time limit; no piece starts whose estimated end is later.  [default: none]",
)
@click.option("--plan", is_flag=True, help="Print the plan with its estimated time, and stop.")
@shared_options("device", "quiet", "json")
def variants(
    recipe: Path,
    out: Path,
    data: Path,
    seeds: int,
    minutes: float | None,
    plan: bool,
    device: str,
    as_json: bool,
) -> None:
    """Compare encoder families at one equal budget.

    The families of RECIPE, such as BERT and ALBERT, are pre-trained on one corpus with one
    vocabulary, fine-tuned alike and measured. One table is at equal tokens, the other at equal
    seconds of processor time. The plan with its estimated time is printed first. If the command is
    repeated, it continues where it stopped.
    """
    from sbert_search.lab.variants.report import TITLES, table_of
    from sbert_search.lab.variants.run import analyze_variants, plan_lines, plan_variants

    if plan:
        planned = plan_variants(recipe, out, data=data, seeds=seeds, device=device)
        for piece in planned if as_json else ():
            emit({**piece})
        for line in () if as_json else plan_lines(planned):
            say(line)
        return
    report = analyze_variants(recipe, out, data=data, seeds=seeds, minutes=minutes, device=device)
    if as_json:
        emit(report.to_mapping())
    else:
        for budget, figures in report.tables.items():
            say(TITLES[budget])
            show_table(*table_of(figures))
        say("Pre-training")
        show_table(*table_of(report.training))
    if report.missing:
        note(f"{len(report.missing)} pieces are not finished; repeat the command to go on.")
    note(f"wrote {out / 'variants.md'}")
