"""Options of the commands that can embed documents on a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from sbert_search.cli.options.shared import Decorator, F, given

if TYPE_CHECKING:
    from sbert_search.embedding.pipeline import EmbedBatches

_OPTIONS: tuple[Decorator, ...] = (
    click.option(
        "--runner",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Where texts are embedded; local: in this process, ray: on a Ray cluster.",
    ),
    click.option(
        "--ray-address",
        metavar="HOST:PORT",
        help="With --runner ray: address of the cluster.  [default: RAY_ADDRESS, or else a "
        "cluster of this machine alone]",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --runner ray: number of processes that embed.  [default: one for each machine; "
        "on GPUs, one for each GPU]",
    ),
)


def runner_options(function: F) -> F:
    """Add the options that say where texts are embedded."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@contextlib.contextmanager
def opened_runner(ctx: click.Context) -> Iterator[EmbedBatches]:
    """Yield a function that embeds batches, on the cluster of the options or in this process.

    Raises:
        UsageError: --ray-address or --workers is given without --runner ray.
        ConfigError: Ray is not installed, or the cluster has too few CPUs.
        ClusterError: The cluster cannot be reached.
    """
    if ctx.params["runner"] == "local":
        if alone := given(ctx) & {"ray_address", "workers"}:
            raise click.UsageError(f"--{min(alone).replace('_', '-')} needs --runner ray.")
        from sbert_search.embedding.pipeline import embed_batches

        yield embed_batches
        return
    from sbert_search.cluster.runner import RayRunner

    with RayRunner(ctx.params["ray_address"], workers=ctx.params["workers"]) as runner:
        yield runner
