"""The wings: parts of the package without which the rest works.

A wing is a folder whose `__init__` has a `WING`, which says what the wing adds. No other module of
the package imports a wing, so its folder may be absent, and what it adds is absent with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Never

from sbert_search.errors import ConfigError

_NAMES = ("cluster", "exchange", "heads", "integrations", "lab")
_NONE: Mapping[str, Never] = MappingProxyType({})


class Command(NamedTuple):
    """A command that a wing adds."""

    home: str  # its module:attribute
    line: str = ""  # first sentence of its help, for a command without a group
    examples: Sequence[str] = ()  # command lines that the end of its help shows


class Wing(NamedTuple):
    """What a wing adds; its modules are imported when something of them is first used."""

    public: Mapping[str, Sequence[str]] = _NONE  # names that `sbert_search` offers, by module
    commands: Mapping[str, Command] = _NONE  # by name, such as "index export"
    parts: Mapping[str, str] = _NONE  # module or module:attribute of what the rest asks for


@cache
def installed() -> dict[str, Wing]:
    """Return the wings that this installation has, by name."""
    found = {}
    for name in _NAMES:
        try:
            module = import_module(f"sbert_search.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"sbert_search.{name}":
                raise
            continue
        if wing := getattr(module, "WING", None):  # an empty folder is a module, too
            found[name] = wing
    return found


def commands() -> dict[str, Command]:
    """Return the commands of all wings."""
    return {
        name: command for wing in installed().values() for name, command in wing.commands.items()
    }


def part(name: str) -> Any:
    """Return what a wing adds under a name, or None."""
    for wing in installed().values():
        if home := wing.parts.get(name):
            module, _, attribute = home.partition(":")
            found = import_module(module)
            return getattr(found, attribute) if attribute else found
    return None


def required_part(name: str, what: str) -> Any:
    """Return what a wing adds under a name, or raise a ConfigError that refuses ``what``."""
    found = part(name)
    if found is None:
        raise ConfigError(f"{what} is not possible: this installation has no {name}.")
    return found


def folders() -> list[Path]:
    """Return the folders of the wings."""
    return [Path(__file__).parent / name for name in installed()]
