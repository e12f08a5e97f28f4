"""`analyze errors` and `analyze map`: the errors of a run, and a map of an index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.options.shared import options_of, shared_options
from sbert_search.lab.commands import FOLDER, out_option
from sbert_search.lab.map.settings import MapKeywords, MapSettings

if TYPE_CHECKING:
    from sbert_search.lab.errors.report import ErrorReport
    from sbert_search.lab.map.record import CorpusMap


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
        _emit_errors(report) if as_json else _show_errors(report)
    for path in write_errors(reports, out) if out else ():
        note(f"wrote {path}")


def _emit_errors(report: ErrorReport) -> None:
    """Print a line with the figures and slices, then a line for each of the worst items."""
    record = report.to_mapping()
    items = record.pop("worst")
    emit(record)
    for item in items if isinstance(items, list) else ():
        emit({"task": report.task, **item})


def _show_errors(report: ErrorReport) -> None:
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


SHOWN_OUTLIERS = 5


@click.command("map")
@click.argument("path", metavar="INDEX", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the page map.html."
)
@click.option("--parquet", is_flag=True, help="Also write map.parquet, a row for each document.")
@click.option(
    "--query",
    "queries",
    multiple=True,
    metavar="TEXT",
    help="Mark the 50 best documents of a query; can be repeated.",
)
@options_of(MapSettings, "points", "neighbours")
@options_of(MapSettings, "clusters", unset="cube root of the documents on the map, at most 50")
@options_of(MapSettings, "duplicates")
@options_of(MapSettings, "language", unset="that of the index, else english")
@shared_options("memory", "seed", "quiet", "json")
def map_(
    path: Path,
    out: Path,
    parquet: bool,
    queries: tuple[str, ...],
    as_json: bool,
    **settings: Unpack[MapKeywords],
) -> None:
    """Draw the documents of INDEX as a page that shows near documents close together.

    The page needs no network and no server. It shows clusters with their telling words, outliers
    and near-duplicates, which are also in map.json. With --json, the coordinates and the cluster
    of each document are printed. Needs the extra analyze.
    """
    from sbert_search.lab.map.making import map_index
    from sbert_search.lab.map.saving import require_folder, rows, write_map

    require_folder(out, path, "--out")
    drawn = map_index(path, queries=queries, settings=MapSettings(**settings))
    written = write_map(drawn, out, parquet=parquet)
    if as_json:
        for row in rows(drawn):
            emit(row)
    else:
        _show_map(drawn)
    for file in written:
        note(f"wrote {file}")


def _show_map(drawn: CorpusMap) -> None:
    import numpy as np

    sizes = np.bincount(drawn.cluster).tolist()
    cells = [[number, size, ", ".join(drawn.words[number])] for number, size in enumerate(sizes)]
    show_table(["cluster", "documents", "telling words"], cells)
    say()
    if drawn.has_groups:
        groups, held = drawn.groups(), int(np.sum(drawn.group >= 0))
        say(f"{len(groups):,} groups of near-duplicates hold {held:,} documents.")
    say("Farthest from their neighbours:")
    for at in drawn.outliers(SHOWN_OUTLIERS):
        say(f"  {drawn.distances[at]:.3f}  {drawn.doc_ids[at]}  {drawn.titles[at]}")
