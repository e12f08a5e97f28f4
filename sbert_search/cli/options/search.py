"""The options of a search on the command line, and the `SearchOptions` that they make."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

import click

from sbert_search.cli.options.shared import Decorator, joined, options_of, typed
from sbert_search.search.options import Boost, Fusion, SearchOptions

rerank_windows: Decorator = click.option(
    "--rerank-windows",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Number of windows of a text that is too long for the reranker; the best window counts. "
    "1 truncates the text.",
)
fusion_options = options_of(Fusion, "method", "dense_weight", flags={"method": "--fusion"})
_RANKING: tuple[Decorator, ...] = (
    fusion_options,
    click.option(
        "--rerank", metavar="MODEL", help="Cross-encoder that scores the first hits again."
    ),
    options_of(SearchOptions, "rerank_depth"),
    rerank_windows,
    options_of(Fusion, "rerank_weight"),
)

_FUSION = ("method", "dense_weight", "rerank_weight")
# For each parameter, the option without which it has no effect.
_NEEDS = dict.fromkeys(("method", "dense_weight"), "--mode hybrid") | dict.fromkeys(
    ("rerank_depth", "rerank_windows", "rerank_weight"), "--rerank"
)
_NEEDS |= {"group_size": "--group-by", "answer_depth": "--answer"}


def ranking_options(mode: Literal["auto", "dense"]) -> Decorator:
    """Give a command the options of retrieval, fusion and reranking, and the default of --mode."""
    if mode == "auto":
        add_mode = options_of(SearchOptions, "mode")
    else:
        add_mode = click.option(
            "--mode",
            type=click.Choice(["dense", "lexical", "hybrid"]),
            default=mode,
            show_default=True,
            help="Compare vectors (dense), words (lexical), or both (hybrid).",
        )

    return joined(add_mode, *_RANKING)


# Of a file of queries. That of documents, in `ReadSettings`, would make a search import how these
# are read.
encoding_option: Decorator = click.option(
    "--encoding",
    metavar="NAME",
    help="Encoding of the file of queries if it is not UTF-8, such as cp1252 or utf-16.",
)
boost_option: Decorator = click.option(
    "--boost",
    multiple=True,
    metavar="COLUMN:KIND:WEIGHT",
    help="Raise documents by a number (log or linear) or by a date: views:log:0.01, or "
    "published:recency:0.05:30, where 30 days halve the gain. Repeat it for several.",
)
order_options = joined(
    boost_option,
    options_of(SearchOptions, "diversity", "group_by", "group_size"),
)
answer_options = joined(
    click.option(
        "--answer",
        metavar="MODEL",
        help="Model for questions that looks for the answer to QUERY in the first hits.",
    ),
    options_of(SearchOptions, "answer_depth"),
)


def search_options(ctx: click.Context) -> SearchOptions:
    """Make `SearchOptions` from the options of the running command.

    An option on the command line that would have no effect is refused; in a configuration file, it
    is ignored.
    """
    params, on_line = ctx.params, typed(ctx)
    fuses = params["mode"] in ("auto", "hybrid")
    grouped = params.get("group_by") is not None
    holds = {"--mode hybrid": fuses, "--rerank": bool(params["rerank"]), "--group-by": grouped}
    holds["--answer"] = bool(params.get("answer"))
    for option in ctx.command.params:
        needed = _NEEDS.get(option.name or "")
        if needed and option.name in on_line and not holds[needed]:
            raise click.UsageError(f"{option.opts[0]} needs {needed}.")
    fusion = Fusion(**{name: params[name] for name in _FUSION})
    names = [field.name for field in fields(SearchOptions) if field.name in params]
    given_values = {name: params[name] for name in names if grouped or name != "group_size"}
    if "boost" in given_values:
        given_values["boost"] = [Boost.parse(text) for text in params["boost"]]
    group = not params.get("passages")
    return SearchOptions(fusion=fusion, group=group, **given_values)
