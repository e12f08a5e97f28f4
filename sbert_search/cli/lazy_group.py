"""A click group that imports a command only when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group that imports a command on first use and lists commands in the order given.

    Attributes:
        homes: ``module:attribute`` of each command, by name.
    """

    def __init__(self, *args: Any, homes: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.homes = homes

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order given."""
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; return None if the group has no command of that name."""
        if cmd_name not in self.homes:
            return None
        module, _, attribute = self.homes[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command
