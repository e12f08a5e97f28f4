"""Click groups that import a command only when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click


def lazy_group(homes: Mapping[str, str]) -> type[click.Group]:
    """Make a group class that lists its commands as ``homes`` does and imports each on first use.

    Args:
        homes: ``module:attribute`` of each command, by name.
    """

    class LazyGroup(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(homes)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in homes:
                return None
            module, _, attribute = homes[cmd_name].partition(":")
            command: click.Command = getattr(import_module(module), attribute)
            return command

    return LazyGroup
