"""The commands that make and keep an index."""

from __future__ import annotations

import click

from sbert_search.cli.lazy_group import LazyGroup

_CHANGE = "sbert_search.cli.index.update"
_CARE = "sbert_search.cli.index.maintain"


@click.group(
    cls=LazyGroup,
    homes={
        "build": f"{_CHANGE}:build",
        "add": f"{_CHANGE}:add",
        "upsert": f"{_CHANGE}:upsert",
        "delete": f"{_CHANGE}:delete",
        "info": f"{_CARE}:info",
        "check": f"{_CARE}:check",
        "repair": f"{_CARE}:repair",
        "compact": f"{_CARE}:compact",
        "lexical": f"{_CARE}:lexical",
        "snapshot": f"{_CARE}:snapshot",
        "tune": "sbert_search.cli.index.tune:tune",
    },
)
def index() -> None:
    """Build an index, change it and keep it healthy."""
