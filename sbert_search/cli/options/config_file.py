"""The configuration file `sbert-search.toml`, and the origin of the value of each option.

The command line overrides environment variables, and environment variables override the file.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from sbert_search.base.progress import shown_url
from sbert_search.cli.console import emit, show_table
from sbert_search.cli.options.shared import SHARED_NAMES, ModelOfIndex, NarrowPrecision
from sbert_search.config import read_toml, unknown_name
from sbert_search.errors import ConfigError


class ConfigFile:
    """Values of options in a TOML file.

    A value at the top of the file applies to all commands that have the option, with two
    exceptions. A model does not apply to commands that open an index, since the index names its own
    model. A precision does not apply to commands that cannot compute in it. A table such as
    ``[index.build]`` applies to one command, and overrides the values at the top.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._tables = path, read_toml(path)

    def defaults(
        self, command: click.Command, groups: Sequence[click.Group], names: Sequence[str]
    ) -> dict[str, object]:
        """Return the values for a command, by the names of its parameters.

        ``groups`` contain the command, the program itself first; ``names`` are those of the other
        groups and of the command, such as index and build. A wrong value is refused with its line
        in the file.
        """
        options, own = _options(command), self.own(groups, names)
        for name in own.keys() - options.keys():
            known = unknown_name(name, name, options, f"option of {' '.join(names)}")
            raise ConfigError(f"{self._place(names, name)}: {known}")
        shared = self._shared(groups[0])
        if isinstance(options.get("model"), ModelOfIndex):
            shared.pop("model", None)
        precision = options.get("precision")
        if isinstance(precision, NarrowPrecision) and precision.is_for_others(
            shared.get("precision")
        ):
            del shared["precision"]
        values = {**shared, **own}
        return {
            option.name or "": self._checked(option, name, names if name in own else (), value)
            for name, option in options.items()
            if (value := values.get(name)) is not None
        }

    def _shared(self, program: click.Group) -> dict[str, object]:
        values = {n: v for n, v in self._tables.items() if not isinstance(v, Mapping)}
        commands = program.list_commands(click.Context(program))
        for name in values.keys() - SHARED_NAMES:
            hint = (
                f"{name} is a command; write a table, [{name}]."
                if name in commands
                else unknown_name(name, name, SHARED_NAMES, "option for all commands")
                + " Write the other options in the table of their command, such as [search]."
            )
            raise ConfigError(f"{self._place([], name)}: {hint}")
        return values

    def own(self, groups: Sequence[click.Group], names: Sequence[str]) -> dict[str, object]:
        """Return the values of a command's table; ``groups`` and ``names`` as for `defaults`."""
        table: Mapping[str, object] = self._tables
        for depth, (group, name) in enumerate(zip(groups, names, strict=True)):
            known = group.list_commands(click.Context(group))
            for other, inner in table.items():
                place = self._place(names[:depth], other)
                if isinstance(inner, Mapping) and other not in known:
                    raise ConfigError(f"{place}: {unknown_name(other, other, known, 'command')}")
                if depth and not isinstance(inner, Mapping):
                    shown = ".".join([*names[:depth], known[0]])
                    raise ConfigError(
                        f"{place}: {' '.join(names[:depth])} is a group of commands, which has no "
                        f"options; write {other} in the table of a command, such as [{shown}]."
                    )
            found = table.get(name, {})
            table = found if isinstance(found, Mapping) else {}
        return dict(table)

    def _checked(
        self, option: click.Option, name: str, table: Sequence[str], value: object
    ) -> object:
        """Return a value in the form of the command line: a text, a list of texts, or a flag."""
        place = self._place(table, name)
        if option.is_flag:
            if not isinstance(value, bool):
                raise ConfigError(f"{place}: {name} is {value!r}; write true or false.")
            return value
        several = option.multiple or option.nargs != 1
        if isinstance(value, list) != several or isinstance(value, (bool, Mapping)):
            wanted = "a list" if several else "one value"
            raise ConfigError(f"{place}: {name} is {value!r}; write {wanted}.")
        # The option converts a text, as on the command line: click's integer type would turn the
        # number 2.5 into 2, but refuses the text "2.5".
        text = list(map(str, value)) if isinstance(value, list) else str(value)
        try:
            option.type_cast_value(click.Context(click.Command(name)), text)
        except click.BadParameter as error:
            raise ConfigError(f"{place}: {name}: {error.message}") from error
        return text

    def _place(self, table: Sequence[str], key: str) -> str:
        """Return the path of the file, with the line number of a key if one can be found."""
        line = _line_of(self.path.read_text(encoding="utf-8"), ".".join(table), key)
        return str(self.path) if line is None else f"{self.path}:{line}"


def shown_instead(command: click.Command, path: Path | None) -> click.Command:
    """Return a copy of a command that only prints the value of each option and its origin."""
    shown = copy.copy(command)
    shown.params = list(map(_optional, command.params))

    def show(**_: object) -> None:
        ctx = click.get_current_context()
        rows = list(_rows(ctx, path))
        if ctx.params.get("as_json"):
            for row in rows:
                emit(row)
        else:
            show_table(["option", "value", "from"], [list(row.values()) for row in rows])

    shown.callback = show
    return shown


def _optional(param: click.Parameter) -> click.Parameter:
    """Return a copy of a parameter that is optional, runs no callback, and exposes its value."""
    seen = copy.copy(param)
    seen.required, seen.expose_value, seen.callback = False, True, None
    return seen


def _rows(ctx: click.Context, path: Path | None) -> Iterator[dict[str, object]]:
    for name, option in _options(ctx.command).items():
        source = ctx.get_parameter_source(option.name or "")
        origin = {
            ParameterSource.COMMANDLINE: "command line",
            ParameterSource.ENVIRONMENT: f"environment, {option.envvar}",
            ParameterSource.DEFAULT_MAP: str(path),
        }.get(source or ParameterSource.DEFAULT, "default")
        value = ctx.params.get(option.name or "")
        shown = value if isinstance(value, (bool, int, float, str)) or value is None else str(value)
        if name == "api-key" and value is not None:
            shown = "***"
        if name == "url" and value is not None:
            shown = shown_url(str(value))
        yield {"option": name, "value": shown, "from": origin}


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by their names in the file: ``chunk-tokens``, ``k``."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    return {max(option.opts, key=len).lstrip("-"): option for option in options}


def _line_of(text: str, table: str, key: str) -> int | None:
    """Return the number of the line that sets a key of a table or opens its subtable ``key``."""
    current, name = "", re.escape(key)
    own = re.compile(rf"\s*[\"']?{name}[\"']?\s*=")
    opened = f"{table}.{key}".strip(".")
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            current = re.sub(r"[\"'\s]", "", header[1])
            if current == opened or current.startswith(f"{opened}."):
                return number
        elif current == table and own.match(line):
            return number
    return None
