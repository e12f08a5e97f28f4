"""The group `index`: build, update, check and tune an index."""

from __future__ import annotations

import click

from sbert_search.cli.lazy_group import LazyGroup


@click.group(cls=LazyGroup)
def index() -> None:
    """Build, update, check and tune an index."""
