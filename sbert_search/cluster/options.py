"""Options of the commands that can embed documents or search shards on a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from sbert_search.cli.options.shared import Decorator, Finite, given, joined, typed

if TYPE_CHECKING:
    from sbert_search.cluster.runner import RayRunner
    from sbert_search.embed.pipeline import EmbedBatches


def _runner(what: str) -> Decorator:
    return click.option(
        "--runner",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help=f"Where {what}; local: in this process, ray: on a Ray cluster.",
    )


def _workers(what: str) -> Decorator:
    return click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"With --runner ray: number of processes that {what}",
    )


_ADDRESS: Decorator = click.option(
    "--ray-address",
    metavar="HOST:PORT",
    help="With --runner ray: address of the cluster.  [default: RAY_ADDRESS, or else a "
    "cluster of this machine alone]",
)
_REPLICAS: Decorator = click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="With --runner ray: number of processes that hold each shard, so that another one answers "
    "if a process or its machine ends.",
)
_PARTIAL: Decorator = click.option(
    "--partial",
    is_flag=True,
    help="With --runner ray: answer without the documents of lost shards, and name these shards. "
    "By default, a lost shard is an error.",
)
_TIMEOUT: Decorator = click.option(
    "--shard-timeout",
    "shard_timeout_s",
    type=Finite(min=1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="With --runner ray: time in which a process must search its shards; then it is ended and "
    "replaced.",
)
runner_options = joined(
    _runner("texts are embedded"),
    _ADDRESS,
    _workers("embed.  [default: one for each machine; on GPUs, one for each GPU]"),
)
_SEARCHES = _runner("the shards of an index are searched")
_WORKERS = _workers("search.  [default: one for each machine]")
search_runner_options = joined(_SEARCHES, _ADDRESS, _WORKERS, _REPLICAS, _PARTIAL, _TIMEOUT)
# `--workers` of `serve` means another thing.
serve_runner_options = joined(_SEARCHES, _ADDRESS, _REPLICAS, _PARTIAL, _TIMEOUT)


@contextlib.contextmanager
def opened_runner(ctx: click.Context) -> Iterator[EmbedBatches]:
    """Yield a function that embeds batches, on the cluster that is given or in this process."""
    if not _on_ray(ctx, {"ray_address", "workers"}):
        from sbert_search.embed.pipeline import embed_batches

        yield embed_batches
        return
    from sbert_search.cluster.runner import RayRunner

    with RayRunner(ctx.params["ray_address"], workers=ctx.params["workers"]) as runner:
        yield runner


@contextlib.contextmanager
def search_runner(ctx: click.Context, *, serves: bool = False) -> Iterator[RayRunner | None]:
    """Yield a runner that searches shards on a cluster, or None if this process searches them.

    The option ``--workers`` of `serve` is the number of server processes, not of runner processes.
    """
    own = {"ray_address", "replicas", "partial", "shard_timeout_s"} | (
        set() if serves else {"workers"}
    )
    if not _on_ray(ctx, own):
        yield None
        return
    from sbert_search.cluster.runner import RayRunner

    params = ctx.params
    with RayRunner(
        params["ray_address"],
        workers=None if serves else params["workers"],
        replicas=params["replicas"],
        partial=params["partial"],
        shard_timeout_s=params["shard_timeout_s"],
    ) as runner:
        yield runner


def _on_ray(ctx: click.Context, names: set[str]) -> bool:
    """Whether the runner is ray; if not, refuse the options ``names``, which need it."""
    if ctx.params["runner"] != "local":
        return True
    on_line = typed(ctx)
    # If the command line says --runner local, options from the environment or the file are ignored.
    alone = (on_line if "runner" in on_line else given(ctx)) & names
    for option in ctx.command.params:
        if option.name in alone:
            raise click.UsageError(f"{option.opts[0]} needs --runner ray.")
    return False
