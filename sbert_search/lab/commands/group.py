"""The command group `analyze`: analyses of models and indexes."""

from __future__ import annotations

import click

from sbert_search.cli.lazy_group import lazy_group


@click.group(cls=lazy_group("analyze", {}))
def analyze() -> None:
    """Analyze models and indexes."""
