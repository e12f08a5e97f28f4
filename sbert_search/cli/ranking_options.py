"""The options that say how documents are found and put in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sbert_search.cli.shared_options import Decorator, Finite, given

if TYPE_CHECKING:
    from sbert_search.search.fusion import Fusion

_RANKING: tuple[Decorator[Any], ...] = (
    click.option(
        "--mode",
        type=click.Choice(["dense", "lexical", "hybrid"]),
        default="dense",
        show_default=True,
        help="How documents are found: by nearness of vectors, by their words, or by both.",
    ),
    click.option(
        "--fusion",
        "method",
        type=click.Choice(["weighted", "rrf"]),
        default="weighted",
        show_default=True,
        help="What joins the two rankings of hybrid: scaled scores, or reciprocal ranks.",
    ),
    click.option(
        "--dense-weight",
        type=Finite(),
        default=0.5,
        show_default=True,
        help="Share of vectors in hybrid, 0 to 1.",
    ),
    click.option(
        "--rerank", metavar="MODEL", help="Cross-encoder that scores the first hits again."
    ),
    click.option("--rerank-depth", default=100, show_default=True, help="Hits it scores."),
    click.option(
        "--rerank-windows",
        default=4,
        show_default=True,
        help="Windows of a text too long for it, of which the best counts; 1 cuts the text.",
    ),
    click.option(
        "--rerank-weight",
        type=Finite(),
        default=1.0,
        show_default=True,
        help="Share of its score in the order, 0 to 1; the rest is the score before.",
    ),
)

_FUSION = ("method", "dense_weight", "rerank_weight")
_READ_WITH = dict.fromkeys(("method", "dense_weight"), "--mode hybrid") | dict.fromkeys(
    ("rerank_depth", "rerank_windows", "rerank_weight"), "--rerank"
)


def ranking_options(command: Any) -> Any:
    """Give a command the options that say how documents are found and put in order."""
    for decorate in reversed(_RANKING):
        command = decorate(command)
    return command


def fusion_asked(options: dict[str, Any]) -> Fusion:
    """Take from the options of the running command how rankings become one.

    Raises:
        UsageError: An option was given that nothing would read.
        QueryError: A weight that cannot be.
    """
    from sbert_search.search.fusion import Fusion

    context = click.get_current_context()
    hybrid, rerank = context.params["mode"] == "hybrid", context.params["rerank"]
    met, chosen = {"--mode hybrid": hybrid, "--rerank": bool(rerank)}, given(context)
    for option in context.command.params:
        needed = _READ_WITH.get(option.name or "")
        if needed and option.name in chosen and not met[needed]:
            raise click.UsageError(f"{option.opts[0]} is for {needed}.")
    return Fusion(**{name: options.pop(name) for name in _FUSION})
