"""The commands that train a model on labelled text."""

from __future__ import annotations

import click

from sbert_search.cli.main import LazyGroup


@click.group(
    cls=LazyGroup,
    homes={},
)
def train() -> None:
    """Train a model for a task."""
