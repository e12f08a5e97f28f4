"""`eval mteb`: run tasks of MTEB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbert_search.cli.console import emit, show_table
from sbert_search.cli.evaluate.reporting import FOLDER
from sbert_search.cli.options.search import ranking_options, search_options
from sbert_search.cli.options.shared import refuse_typed, shared_options
from sbert_search.errors import ConfigError

if TYPE_CHECKING:
    from sbert_search.embed.engines.protocol import EngineName

_FOR_ENCODER = {"tasks", "encoder", "split", "out", "model", "device", "engine", "as_json"}


@click.command("mteb")
@click.argument("tasks", metavar="TASK...", nargs=-1, required=True)
@click.option("--encoder", is_flag=True, help="Run the model alone, on tasks of any type.")
@click.option("--split", default="test", show_default=True, help="Split of a BEIR folder.")
@click.option("--out", type=FOLDER, help="Folder for MTEB's result files, reused by later runs.")
@ranking_options("dense")
@shared_options("model", "device", "engine", "quiet", "json")
@click.pass_context
def mteb(
    ctx: click.Context,
    /,
    tasks: tuple[str, ...],
    encoder: bool,
    split: str,
    out: Path | None,
    model: str | None,
    device: str,
    engine: EngineName,
    rerank: str | None,
    rerank_windows: int,
    as_json: bool,
    **_: object,
) -> None:
    """Run tasks of MTEB; needs the extra mteb.

    TASK is the name of a task of MTEB, such as NFCorpus, whose data come from the hub, or a BEIR
    folder. By default, an index of the corpus is searched; --encoder gives the model itself to
    MTEB.
    """
    if encoder:
        refuse_typed(ctx, ctx.params.keys() - _FOR_ENCODER, "with --encoder")
    from sbert_search.embed.embedder import open_embedder
    from sbert_search.search.rerankers import BestWindow, Reranker

    try:
        from sbert_search.integrations.mteb import SbertSearchEncoder, SbertSearchModel
        from sbert_search.integrations.mteb.tasks import open_tasks, run_tasks
    except ImportError as error:
        raise ConfigError(str(error)) from error
    opened = open_tasks(tasks, split)
    embedder = open_embedder(model, device=device, engine=engine)
    if encoder:
        system: SbertSearchEncoder | SbertSearchModel = SbertSearchEncoder(embedder)
    else:
        scorer = BestWindow(Reranker(rerank, device=device), rerank_windows) if rerank else None
        system = SbertSearchModel(embedder, options=search_options(ctx), reranker=scorer)
    rows = run_tasks(system, opened, out)
    if as_json:
        for row in rows:
            emit(row)
    else:
        cells = [[row[name] for name in ("task", "split", "metric", "score")] for row in rows]
        show_table(["task", "split", "metric", "score"], cells)
