"""The options of a search on the command line, and the `SearchOptions` that they make."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Literal

import click

from sbert_search.cli.options.shared import Decorator, F, Finite, typed

if TYPE_CHECKING:
    from sbert_search.search.options import SearchOptions

_RANKING: tuple[Decorator, ...] = (
    click.option(
        "--fusion",
        "method",
        type=click.Choice(["weighted", "rrf"]),
        default="weighted",
        show_default=True,
        help="How hybrid scores a document: by its cosine and the share of the highest BM25 "
        "score that the query can have (weighted), or by its ranks (rrf, reciprocal rank fusion).",
    ),
    click.option(
        "--dense-weight",
        type=Finite(),
        default=0.4,
        show_default=True,
        help="Weight of the cosine in the score of hybrid, 0 to 1; the share of the highest "
        "BM25 score has the rest.",
    ),
    click.option(
        "--rerank", metavar="MODEL", help="Cross-encoder that scores the first hits again."
    ),
    click.option(
        "--rerank-depth", default=100, show_default=True, help="Number of hits to rerank."
    ),
    click.option(
        "--rerank-windows",
        default=4,
        show_default=True,
        help="Number of windows of a text that is too long for the reranker; the best window "
        "counts. 1 truncates the text.",
    ),
    click.option(
        "--rerank-weight",
        type=Finite(),
        default=1.0,
        show_default=True,
        help="Weight of the reranker's score in the final order, 0 to 1; the score before "
        "reranking has the rest. Below 1, the reranker's score counts as a probability.",
    ),
)

_ORDER: tuple[Decorator, ...] = (
    click.option(
        "--boost",
        multiple=True,
        metavar="COLUMN:KIND:WEIGHT",
        help="Raise documents by a number (log or linear) or by a date: views:log:0.2, or "
        "published:recency:0.5:30, where 30 days halve the gain. Repeat it for several.",
    ),
    click.option(
        "--diversity",
        type=Finite(min=0, max=1),
        default=0.0,
        show_default=True,
        help="Avoid hits that resemble better hits, from 0 (not at all) to 1.",
    ),
    click.option(
        "--group-by", metavar="COLUMN", help="Return the best documents of each value of a column."
    ),
    click.option(
        "--group-size",
        default=1,
        show_default=True,
        help="With --group-by: number of documents of each group; -k counts groups.",
    ),
)

_MODES = {
    "dense": "Compare vectors (dense), words (lexical), or both (hybrid).",
    "auto": "Compare vectors (dense), words (lexical), or both (hybrid); auto: both if the index "
    "has lexical data, else vectors.",
}
_FUSION = ("method", "dense_weight", "rerank_weight")
# For each parameter, the option without which it has no effect.
_NEEDS = dict.fromkeys(("method", "dense_weight"), "--mode hybrid") | dict.fromkeys(
    ("rerank_depth", "rerank_windows", "rerank_weight"), "--rerank"
)
_NEEDS |= {"group_size": "--group-by", "answer_depth": "--answer"}


def ranking_options(mode: Literal["auto", "dense"]) -> Decorator:
    """Give a command the options of retrieval, fusion and reranking.

    Args:
        mode: Default of --mode. ``auto`` is a choice only where it is the default.
    """
    modes = click.Choice(["auto", "dense", "lexical", "hybrid"][mode == "dense" :])
    option = click.option("--mode", type=modes, default=mode, show_default=True, help=_MODES[mode])

    def decorate(function: F) -> F:
        for add in reversed((option, *_RANKING)):
            function = add(function)
        return function

    return decorate


def order_options(function: F) -> F:
    """Give a command the options of the stages after reranking."""
    for add in reversed(_ORDER):
        function = add(function)
    return function


def answer_options(function: F) -> F:
    """Give a command the options of the task head that finds answers in hits."""
    function = click.option(
        "--answer-depth", default=5, show_default=True, help="Number of hits to read with --answer."
    )(function)
    return click.option(
        "--answer",
        metavar="MODEL",
        help="Model for questions that looks for the answer to QUERY in the first hits.",
    )(function)


def search_options(ctx: click.Context) -> SearchOptions:
    """Make `SearchOptions` from the options of the running command.

    Defaults of a configuration file that have no effect on this search are ignored.

    Raises:
        UsageError: An option on the command line would have no effect.
        QueryError: A value is out of range.
    """
    from sbert_search.search.boosts import Boost
    from sbert_search.search.options import SearchOptions
    from sbert_search.search.ranking import Fusion

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
