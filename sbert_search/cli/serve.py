"""`serve` and `mcp`: answer requests for search, embeddings and reranking of other programs."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import emit
from sbert_search.cli.options.runner import search_runner, serve_runner_options
from sbert_search.cli.options.search import fusion_options, rerank_windows
from sbert_search.cli.options.shared import (
    given,
    index_embedder_options,
    joined,
    model_options,
    options_of,
    prompt_options,
    query_model_option,
    shared_options,
)
from sbert_search.errors import ConfigError, install
from sbert_search.search.options import Fusion, SearchOptions
from sbert_search.serve.access import (
    AccessTokens,
    ServerLimits,
    read_tokens,
    require_safe_address,
)

if TYPE_CHECKING:
    from sbert_search.serve.state import ServeSettings

_rerank_options = joined(
    click.option(
        "--rerank",
        multiple=True,
        metavar="MODEL",
        help="Cross-encoder for reranking; repeatable. Searches use the first one.",
    ),
    rerank_windows,
)
_default_options = joined(
    options_of(SearchOptions, "mode"), fusion_options, options_of(SearchOptions, "fuzzy")
)


def named_indexes(indexes: Sequence[str]) -> dict[str, Path]:
    """Return the folders of indexes by name, from ``DIR`` or ``NAME=DIR``.

    Without NAME, an index has the name of its folder; symbolic links are not followed.
    """
    named: dict[str, Path] = {}
    for text in indexes:
        name, equals, folder = text.partition("=")
        if not equals or "/" in name:  # a folder, whose path may contain =
            name, folder = os.path.basename(os.path.abspath(text)), text
        if not name or not folder:
            raise click.UsageError(f"{text!r} has no name or no folder; write DIR or NAME=DIR.")
        if name in named:
            raise click.UsageError(f"Two indexes are called {name!r}; write NAME=DIR.")
        named[name] = Path(folder)
    return named


def require_packages(use: str, extra: str, packages: Sequence[str]) -> None:
    """Check that the packages of a command are installed, or name the extra that installs them."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ConfigError(f"{use} needs {', '.join(missing)}: {install(extra)}.")


_PACKAGES = ("starlette", "uvicorn", "msgspec", "httptools")
_LIMITS = {  # options by field
    "body_bytes": "--max-body",
    "items": "--max-items",
    "request_tokens": "--max-tokens",
    "queue_tokens": "--max-queue",
    "requests": "--max-requests",
    "connections": "--max-connections",
    "k": "--max-k",
}


@click.command()
@click.argument("indexes", nargs=-1, metavar="[NAME=]DIR...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8080,
    show_default=True,
    help="Port to bind; 0: any free port.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with a token in each line; the token of a line `TOKEN write` may also write.  "
    "[default: the variable SBERT_SEARCH_TOKENS]",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Admit requests without a token, even if other machines can reach the address.",
)
@click.option("--writable", is_flag=True, help="Let clients with a writing token change indexes.")
@click.option(
    "--embed", multiple=True, metavar="MODEL", help="Serve another embedding model; repeatable."
)
@prompt_options
@_rerank_options
@click.option(
    "--predict",
    multiple=True,
    metavar="MODEL",
    help="Classifier of texts, such as one of train classify, for /predict; repeatable.",
)
@click.option(
    "--cors-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Admit web pages of this origin, such as https://example.org, and the header Host of a "
    "proxy at this address; repeatable.",
)
@click.option(
    "--trust-proxy",
    multiple=True,
    metavar="ADDRESS",
    help="Proxy (10.0.0.5) or network of proxies (10.0.0.0/8) whose X-Forwarded-For names the "
    "client; repeatable.  [default: none]",
)
@_default_options
@click.option("--mcp", is_flag=True, help="Offer search to language models at /mcp.")
@click.option(
    "--access-log/--no-access-log",
    default=True,
    show_default=True,
    help="Write a line of JSON for each request to stdout, without its texts.",
)
@click.option(
    "--log-texts",
    is_flag=True,
    help="Put path, query string and body of each request into the log, and thus its texts.",
)
@options_of(ServerLimits, "drain_s", flags={"drain_s": "--drain"})
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Number of processes; each opens its own models and has its own limits.",
)
@serve_runner_options
@options_of(ServerLimits, *_LIMITS, flags=_LIMITS)
@query_model_option
@index_embedder_options
@shared_options("allow-inexact", "wait", "quiet")
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    host: str,
    port: int,
    token_file: Path | None,
    no_token: bool,
    writable: bool,
    embed: tuple[str, ...],
    predict: tuple[str, ...],
    cors_origin: tuple[str, ...],
    trust_proxy: tuple[str, ...],
    mcp: bool,
    access_log: bool,
    log_texts: bool,
    workers: int,
    wait_s: float,
    **_: object,
) -> None:
    """Serve indexes and models over HTTP.

    Clients of OpenAI, Cohere and Hugging Face can use the server. DIR is the folder of an index.
    The index is called NAME or, without NAME, like its folder. --mode, --fusion, --dense-weight and
    --fuzzy are for searches that name no value of their own. SIGTERM ends the server, after the
    requests that have begun.
    """
    require_packages("serve", "", _PACKAGES)
    if mcp:
        require_packages("serve --mcp", "mcp", ["mcp"])
    if log_texts and not access_log:
        raise ConfigError("--log-texts and --no-access-log exclude each other; leave one out.")
    from sbert_search.embed.engines.graph import keeping_graphs
    from sbert_search.serve.access_log import AccessLog
    from sbert_search.serve.server import handled_signals, open_socket, run, url_of
    from sbert_search.serve.state import open_served

    tokens = read_tokens(token_file)
    require_safe_address(host, tokens, without_token=no_token)
    if workers > 1 and ctx.params.get("runner", "local") != "local":
        raise ConfigError("--runner ray needs one process that serves; leave out --workers.")
    settings = _settings(
        ctx,
        models=embed,
        classifiers=predict,
        tokens=tokens,
        limits=ServerLimits(**{name: ctx.params[name] for name in (*_LIMITS, "drain_s")}),
        writable=writable,
        wait_s=wait_s,
        host=host,
        origins=cors_origin,
        proxies=trust_proxy,
        mcp=mcp,
        runner=ctx.with_resource(search_runner(ctx, serves=True)),
    )
    log = AccessLog(emit, texts=log_texts) if access_log else None
    bound = open_socket(host, port)
    with bound:
        if workers > 1:
            from sbert_search.serve.workers import run_workers

            run_workers(settings, bound, workers, log)
            return
        served = open_served(settings)
        names = ", ".join([*served.indexes, *(one.name for one in served.models)])
        # A program may send SIGTERM as soon as it reads this note, before `run` handles signals. An
        # exception could be lost in a callback, or wait for threads; nothing has begun yet.
        with handled_signals((signal.SIGTERM,), lambda *_: os._exit(0)):
            note(f"Serving {names} at {url_of(bound)}")
            with keeping_graphs(served.graphless):
                run(served, [bound], log)


@click.command()
@click.argument("indexes", nargs=-1, required=True, metavar="[NAME=]DIR...")
@_rerank_options
@_default_options
@query_model_option
@index_embedder_options
@shared_options("allow-inexact", "quiet")
@click.pass_context
def mcp(ctx: click.Context, /, **_: object) -> None:
    """Offer search to a language model over stdin and stdout.

    A program that speaks the Model Context Protocol starts this command, and its language model can
    then search, find similar documents and read documents. DIR is the folder of an index. The
    index is called NAME or, without NAME, like its folder. --mode is for searches that name none.
    The command ends when stdin ends.
    """
    require_packages("mcp", "mcp", ("mcp", "starlette", "msgspec"))
    from sbert_search.embed.engines.graph import keeping_graphs
    from sbert_search.serve import mcp as stdio
    from sbert_search.serve.state import open_served

    served = open_served(_settings(ctx, tokens=AccessTokens({})))
    note(f"Offering {', '.join(served.indexes)} over stdin and stdout.")
    with keeping_graphs(served.graphless):
        stdio.run(served)


def _settings(ctx: click.Context, **more: Any) -> ServeSettings:
    from sbert_search.serve.state import ServeSettings

    params, hardware = ctx.params, model_options(ctx)
    prompts = hardware.pop("prompts", None)  # of --embed; an index keeps those of its model
    return ServeSettings(
        indexes=named_indexes(params["indexes"]),
        rerankers=params["rerank"],
        rerank_windows=params["rerank_windows"],
        defaults=SearchOptions(
            mode=params["mode"],
            fusion=Fusion(method=params["method"], dense_weight=params["dense_weight"]),
            fuzzy=params["fuzzy"],
        ),
        index_model=params["model"],
        query_model=params["query_model"],
        options=hardware,
        prompts=prompts,
        quick=not given(ctx) & hardware.keys(),
        allow_inexact=params["allow_inexact"],
        **more,
    )
