"""Arguments and options of `serve` and `mcp`, which answer requests of other programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from sbert_search.cli.options.shared import F
from sbert_search.errors import ConfigError


def rerank_options(function: F) -> F:
    """Add the options of rerankers."""
    function = click.option(
        "--rerank-windows",
        type=click.IntRange(1, 100),
        default=4,
        show_default=True,
        help="In searches, number of windows of a text that is too long for the reranker.",
    )(function)
    return click.option(
        "--rerank",
        multiple=True,
        metavar="MODEL",
        help="Cross-encoder for reranking; repeatable. Searches use the first one.",
    )(function)


def named_indexes(indexes: Sequence[str]) -> dict[str, Path]:
    """Return the folders of indexes by name, from ``DIR`` or ``NAME=DIR``.

    Without NAME, an index has the name of its folder; symbolic links are not followed.

    Raises:
        UsageError: Two indexes have the same name, or a name or folder is empty.
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
    """Check that the packages of a command are installed.

    Raises:
        ConfigError: Packages are missing; the message names the extra that installs them.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ConfigError(f"{use} needs {', '.join(missing)}: pip install 'sbert-search[{extra}]'.")
