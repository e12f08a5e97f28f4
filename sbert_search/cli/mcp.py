"""`mcp`: offer search over stdin and stdout, by the Model Context Protocol."""

from __future__ import annotations

import click

from sbert_search.base.progress import note
from sbert_search.cli.options.served import named_indexes, require_packages, rerank_options
from sbert_search.cli.options.shared import given, index_embedder_options, shared_options
from sbert_search.cli.options.source import model_options


@click.command()
@click.argument("indexes", nargs=-1, required=True, metavar="[NAME=]DIR...")
@rerank_options
@index_embedder_options
@shared_options("allow-inexact", "quiet")
@click.pass_context
def mcp(
    ctx: click.Context,
    /,
    indexes: tuple[str, ...],
    rerank: tuple[str, ...],
    rerank_windows: int,
    model: str | None,
    allow_inexact: bool,
    **_: object,
) -> None:
    """Offer search to a language model over stdin and stdout.

    A program that speaks the Model Context Protocol starts this command, and its language model can
    then search, find similar documents and read documents. DIR is the folder of an index. The
    index is called NAME or, without NAME, like its folder. The command ends when stdin ends.
    """
    require_packages("mcp", "mcp", ("mcp", "starlette", "msgspec"))
    from sbert_search.serve import mcp as stdio
    from sbert_search.serve.access import AccessTokens
    from sbert_search.serve.opening import ServeSettings, open_served

    hardware = model_options(ctx)
    settings = ServeSettings(
        indexes=named_indexes(indexes),
        rerankers=rerank,
        rerank_windows=rerank_windows,
        index_model=model,
        options=hardware,
        quick=not given(ctx) & hardware.keys(),
        allow_inexact=allow_inexact,
        tokens=AccessTokens({}),
    )
    served = open_served(settings)
    note(f"Offering {', '.join(served.indexes)} over stdin and stdout.")
    stdio.run(served)
