"""The command group `analyze`: analyses of models and indexes."""

from __future__ import annotations

import click

from sbert_search.cli.lazy_group import lazy_group

_COMMANDS = {
    "anisotropy": "sbert_search.cli.analyze.anisotropy:anisotropy",
    "attention": "sbert_search.cli.analyze.attention:attention",
    "errors": "sbert_search.cli.analyze.errors:errors",
    "map": "sbert_search.cli.analyze.map:map_",
    "variants": "sbert_search.cli.analyze.variants:variants",
}


@click.group(cls=lazy_group(_COMMANDS))
def analyze() -> None:
    """Analyze models and indexes."""
