"""`analyze errors`: the worst queries or pairs of a run, and slices with worse results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.options.shared import shared_options
from sbert_search.lab.commands.options import FOLDER, out_option

if TYPE_CHECKING:
    from sbert_search.lab.errors.record import ErrorReport

PRINTED = 10  # number of worst items in the printed table


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(exists=True, path_type=Path))
@out_option
@click.option(
    "--data",
    type=FOLDER,
    default="data",
    show_default=True,
    help="Folder that the paths in the records start from, as for `eval`.",
)
@click.option(
    "--metric",
    metavar="NAME",
    help="Metric of queries, such as MRR@10.  [default: the main metric of each task]",
)
@click.option(
    "--worst",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="Number of worst items to describe.",
)
@click.option(
    "--language",
    default="english",
    show_default=True,
    metavar="NAME",
    help="Language in which words are compared; none: no stemmer and no stop words.",
)
@shared_options("seed", "quiet", "json")
def errors(
    run: Path,
    out: Path | None,
    data: Path,
    metric: str | None,
    worst: int,
    language: str,
    seed: int,
    as_json: bool,
) -> None:
    """Show the worst queries or pairs of RUN, and the slices where the model is worse.

    RUN is a record that --out of `eval retrieval` or `eval sts` wrote, or the folder of such
    records. The first table compares slices of the items with the others: by length, by words in
    common, and by the rarest word. The second table lists the worst items. --out writes both as
    JSON, SVG and a page with the texts.
    """
    from sbert_search.lab.errors.analyze import analyze_errors
    from sbert_search.lab.errors.report import require_other_folder, write_errors

    if out is not None:
        require_other_folder(run, out)
    reports = analyze_errors(
        run, data=data, metric=metric, worst=worst, language=language, seed=seed
    )
    for report in reports:
        _emit(report) if as_json else _show(report)
    for path in write_errors(reports, out) if out else ():
        note(f"wrote {path}")


def _emit(report: ErrorReport) -> None:
    """Print a line with the figures and slices, then a line for each of the worst items."""
    record = report.to_mapping()
    items = record.pop("worst")
    emit(record)
    for item in items if isinstance(items, list) else ():
        emit({"task": report.task, **item})


def _show(report: ErrorReport) -> None:
    unit = "pairs" if report.kind == "sts" else "queries"
    better = "higher" if report.higher_is_better else "lower"
    say(
        f"{report.model} on {report.task}: {report.items:,} {unit}, mean {report.metric} "
        f"{report.mean:.4f} ({better} is better)"
    )
    if report.left_out:
        say(f"{report.left_out:,} queries without a relevant document are left out.")
    show_table(*report.slice_table())
    show_table(*report.worst_table(PRINTED))
