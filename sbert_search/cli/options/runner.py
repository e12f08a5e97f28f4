"""Choose where texts are embedded and shards searched: in this process, or on a cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from sbert_search.cli.options.shared import F
from sbert_search.wings import part

if TYPE_CHECKING:
    from sbert_search.embed.pipeline import EmbedBatches
    from sbert_search.search.engine import ShardRunner


def runner_options(function: F) -> F:
    """Add the options that say where texts are embedded."""
    return _with_options(function, "runner_options")


def search_runner_options(function: F) -> F:
    """Add the options that say where shards are searched."""
    return _with_options(function, "search_runner_options")


def serve_runner_options(function: F) -> F:
    """Add the options of `serve` that say where shards are searched."""
    return _with_options(function, "serve_runner_options")


def _with_options(function: F, name: str) -> F:
    runners = part("runners")
    added: F = getattr(runners, name)(function) if runners else function
    return added


def opened_runner(ctx: click.Context) -> AbstractContextManager[EmbedBatches]:
    """Return a context with the function that embeds batches."""
    if runners := part("runners"):
        chosen: AbstractContextManager[EmbedBatches] = runners.opened_runner(ctx)
        return chosen
    from sbert_search.embed.pipeline import embed_batches

    return nullcontext(embed_batches)


def search_runner(
    ctx: click.Context, *, serves: bool = False
) -> AbstractContextManager[ShardRunner | None]:
    """Return a context with what searches shards elsewhere; None: this process searches them."""
    if runners := part("runners"):
        chosen: AbstractContextManager[ShardRunner | None] = runners.search_runner(
            ctx, serves=serves
        )
        return chosen
    return nullcontext(None)
