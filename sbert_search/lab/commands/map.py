"""`analyze map`: a two-dimensional map of an index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.options.shared import Finite, shared_options

if TYPE_CHECKING:
    from sbert_search.lab.map.record import CorpusMap

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
@click.option(
    "--points",
    type=click.IntRange(3, 1_000_000),
    default=100_000,
    show_default=True,
    help="Maximum number of documents on the map; if there are more, a random sample is drawn.",
)
@click.option(
    "--neighbours",
    type=click.IntRange(2, 200),
    default=15,
    show_default=True,
    help="Number of nearest documents that determine the place of a document.",
)
@click.option(
    "--clusters",
    type=click.IntRange(1, 1000),
    help="Number of clusters.  [default: cube root of the documents on the map, at most 50]",
)
@click.option(
    "--duplicates",
    type=Finite(),
    default=0.95,
    show_default=True,
    help="Minimum score of near-duplicates.",
)
@click.option(
    "--language",
    metavar="NAME",
    help="Language of the words that name clusters.  [default: that of the index, else english]",
)
@shared_options("memory", "seed", "quiet", "json")
def map_(
    path: Path,
    out: Path,
    parquet: bool,
    queries: tuple[str, ...],
    points: int,
    neighbours: int,
    clusters: int | None,
    duplicates: float,
    language: str | None,
    memory_bytes: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Draw the documents of INDEX as a page that shows near documents close together.

    The page needs no network and no server. It shows clusters with their telling words, outliers
    and near-duplicates, which are also in map.json. With --json, the coordinates and the cluster
    of each document are printed. Needs the extra analyze.
    """
    from sbert_search.lab.map.making import map_index
    from sbert_search.lab.map.saving import require_folder, write_map
    from sbert_search.lab.map.table import rows

    require_folder(out, path, "--out")
    drawn = map_index(
        path,
        queries=queries,
        memory_bytes=memory_bytes,
        points=points,
        neighbours=neighbours,
        clusters=clusters,
        duplicates=duplicates,
        language=language,
        seed=seed,
    )
    written = write_map(drawn, out, parquet=parquet)
    if as_json:
        for row in rows(drawn):
            emit(row)
    else:
        _show(drawn)
    for file in written:
        note(f"wrote {file}")


def _show(drawn: CorpusMap) -> None:
    """Print clusters, near-duplicates (not for the metric euclidean), and outliers."""
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
