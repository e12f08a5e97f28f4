"""A group of commands that are imported only when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for, listed in the order given.

    Attributes:
        homes: ``module:attribute`` of every command, by name.
    """

    def __init__(self, *args: Any, homes: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.homes = homes

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands."""
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command, or give None for a name that is none."""
        if cmd_name not in self.homes:
            return None
        module, _, attribute = self.homes[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command
