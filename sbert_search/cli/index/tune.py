"""`index tune`: choose the FAISS spec and search settings of an index by measuring."""

from __future__ import annotations

from pathlib import Path

import click

from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.options.shared import Finite, index_embedder_options, shared_options, typed
from sbert_search.cli.options.source import model_options
from sbert_search.config import to_mapping


@click.command()
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--recall", type=Finite(), default=0.95, show_default=True, help="Target of recall@k."
)
@click.option("-k", default=10, show_default=True, help="The k of recall@k.")
@click.option(
    "--latency-ms", type=Finite(), help="Limit of the median time of a query on one thread."
)
@click.option(
    "--max-minutes",
    type=Finite(),
    default=10.0,
    show_default=True,
    help="Maximum time of the tuning.",
)
@click.option(
    "--queries",
    type=click.Path(path_type=Path),
    help='File of typical queries: a JSON object {"_id", "text"} per line.  '
    "[default: documents of the index]",
)
@click.option("--svg", type=click.Path(path_type=Path), help="File for a plot of recall and speed.")
@click.option(
    "--dry-run", is_flag=True, help="Measure on a sample and predict; do not change the index."
)
@index_embedder_options
@shared_options("allow-inexact", "memory", "seed", "wait", "quiet", "json")
@click.pass_context
def tune(
    ctx: click.Context,
    /,
    path: Path,
    recall: float,
    k: int,
    latency_ms: float | None,
    max_minutes: float,
    queries: Path | None,
    svg: Path | None,
    dry_run: bool,
    model: str | None,
    allow_inexact: bool,
    memory_bytes: int | None,
    seed: int,
    wait_s: float,
    as_json: bool,
    **_: str,
) -> None:
    """Choose the fastest search with a target recall.

    Candidates are compared on a sample of at most 100,000 rows. The best two are built over all
    rows and verified on held-out queries. A candidate that exceeds a limit of memory, latency or
    time is not built. With --memory, the FAISS files together may not be larger than the limit
    either, although they are mapped.
    """
    from sbert_search.base import files
    from sbert_search.base.folders import require_apart, require_possible_output
    from sbert_search.index.shards.index import open_index
    from sbert_search.index.tuning.settings import TuneSettings
    from sbert_search.index.tuning.tune import COLUMNS, draw, remarks, tables, verdict
    from sbert_search.text.labelled.retrieval import queries_file

    of_model = {"model", "device", "engine", "precision", "calibrate", "allow_inexact"}
    if queries is None and (names := sorted(typed(ctx) & of_model)):
        raise click.UsageError(
            f"--{names[0].replace('_', '-')} is for the model that embeds --queries; without that "
            "option, documents of the index serve as queries."
        )
    if svg:
        inputs = [path, *([queries_file(queries)] if queries else [])]
        require_possible_output(svg, "--svg")
        require_apart(svg, inputs, "--svg")
    settings = TuneSettings(
        recall=recall,
        k=k,
        memory_bytes=memory_bytes,
        latency_ms=latency_ms,
        max_minutes=max_minutes,
        seed=seed,
    )
    index = open_index(path, wait_s=wait_s)
    if queries is None:
        report = index.tune(settings, dry_run=dry_run)
    else:
        report = index.tune(
            settings,
            queries=queries,
            dry_run=dry_run,
            model=model,
            allow_inexact=allow_inexact,
            **model_options(ctx),
        )
    if svg:
        files.replace_file(svg, draw(report).encode())
    if as_json:
        emit({"index": str(path), **to_mapping(report)})
        return
    for title, rows in tables(report).items():
        say(title)
        show_table(COLUMNS, rows)
    for remark in remarks(report):
        say(remark)
    say(verdict(report.tuning) if report.tuning else "A dry run: nothing was changed.")
