"""Choose where texts are embedded and shards searched: in this process, or on a cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from sbert_search.cli.options.shared import Decorator
from sbert_search.wings import part

if TYPE_CHECKING:
    from sbert_search.embed.pipeline import EmbedBatches
    from sbert_search.search.engine import ShardRunner


def _added(name: str) -> Decorator:
    """Return the decorator of a wing that adds options to a command, or one that adds none."""
    runners = part("runners")
    added: Decorator = getattr(runners, name) if runners else lambda function: function
    return added


runner_options = _added("runner_options")  # where texts are embedded
search_runner_options = _added("search_runner_options")  # where shards are searched
serve_runner_options = _added("serve_runner_options")  # the same, for `serve`


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
