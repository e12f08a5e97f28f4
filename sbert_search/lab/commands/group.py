"""The command group `analyze`: analyses of models and indexes."""

from __future__ import annotations

import click

from sbert_search.cli.lazy_group import lazy_group

_COMMANDS = {
    "anisotropy": "sbert_search.lab.commands.anisotropy:anisotropy",
    "attention": "sbert_search.lab.commands.attention:attention",
    "errors": "sbert_search.lab.commands.errors:errors",
    "map": "sbert_search.lab.commands.map:map_",
    "variants": "sbert_search.lab.commands.variants:variants",
}


@click.group(cls=lazy_group(_COMMANDS))
def analyze() -> None:
    """Analyze models and indexes."""
