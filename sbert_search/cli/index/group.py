"""The group `index`: build, update, check and tune an index."""

from __future__ import annotations

import click

from sbert_search.cli.lazy_group import LazyGroup

_UPDATE = "sbert_search.cli.index.update"
_MAINTAIN = "sbert_search.cli.index.maintain"


_COMMANDS = {
    "build": f"{_UPDATE}:build",
    "add": f"{_UPDATE}:add",
    "upsert": f"{_UPDATE}:upsert",
    "sync": "sbert_search.cli.index.sync:sync",
    "delete": f"{_UPDATE}:delete",
    "info": f"{_MAINTAIN}:info",
    "check": f"{_MAINTAIN}:check",
    "repair": f"{_MAINTAIN}:repair",
    "compact": f"{_MAINTAIN}:compact",
    "lexical": f"{_MAINTAIN}:lexical",
    "backup": f"{_MAINTAIN}:backup",
    "tune": "sbert_search.cli.index.maintain:tune",
}


@click.group(cls=LazyGroup, homes=_COMMANDS)
def index() -> None:
    """Build, update, check and tune an index."""
