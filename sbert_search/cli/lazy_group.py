"""Click groups that import a command at its first use, show examples and suggest names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path

import click
from click.core import ParameterSource

from sbert_search.base.options import offer_options
from sbert_search.cli.commands import COMMANDS
from sbert_search.wings import Command, commands

CONFIG_FILE = "sbert-search.toml"  # read from the current folder
# Key in ctx.meta: names of the options that the command's table in the configuration file sets.
_IN_TABLE = "sbert_search.cli.lazy_group"
# What other programs call a command, for the hint about an unknown one.
_OTHER_WORDS = {
    "build": "index build",
    "query": "search",
    "encode": "embed",
    "evaluate": "eval",
    "dedup": "pairs",
    "finetune": "train bi-encoder",
    "fine-tune": "train bi-encoder",
    "rerank": "search --rerank",
}
NEAR = 0.7  # lowest similarity (difflib ratio) at which a known name is suggested


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the known names that are similar to a misspelt one, or ""."""
    import difflib  # only a misspelt name needs it

    # Leading dashes would make all options similar.
    plain = {option.lstrip("-"): option for option in known}
    near = difflib.get_close_matches(name.lstrip("-"), plain, 2, NEAR)
    return f" Did you mean {' or '.join(repr(plain[each]) for each in near)}?" if near else ""


class LazyGroup(click.Group):
    """A group of commands, to which wings may add: each is imported at its first use.

    It suggests similar commands for a misspelt one, and adds examples to the help of commands.
    """

    @cached_property
    def _own(self) -> dict[str, Command]:
        own = "" if self.name == "cli" else self.name  # "": the group at the top
        every = {**COMMANDS, **commands()}
        parts = {name: name.rpartition(" ") for name in every}
        return {short: every[name] for name, (at, _, short) in parts.items() if at == own}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(self._own)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command with its examples, or None if no command has this name."""
        if cmd_name not in self._own:
            return None
        own = self._own[cmd_name]
        module, _, attribute = own.home.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        if own.examples and "Examples:" not in (command.epilog or ""):
            lines = "\n".join(f"  {example}" for example in own.examples)
            command.epilog = f"{command.epilog or ''}\n\n\b\nExamples:\n{lines}".lstrip("\n")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; those whose first sentence is known are not imported."""
        width, rows = formatter.width - 6 - max(map(len, self._own)), []
        for name, (_, line, _) in self._own.items():
            command = click.Command(name, help=line) if line else self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(width)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a command line; if it does not exist, fail and suggest a name."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            other = _OTHER_WORDS.get(name) if ctx.parent is None else None
            hint = f" Did you mean {other!r}?" if other else suggestion(name, known)
            ctx.fail(f"No such command {name!r}.{hint}")
        found, command, rest = super().resolve_command(ctx, args)
        if command and not isinstance(command, click.Group):
            offer_options({option for param in command.params for option in param.opts})
            ctx.call_on_close(partial(offer_options, None))
            command = _configured(ctx, name, command)
        return found, command, rest


def _configured(ctx: click.Context, name: str, command: click.Command) -> click.Command:
    """Take the defaults of a command from the configuration file, if there is one.

    With ``--show-config``, return a command that prints the options of ``command``.
    """
    given = ctx.find_root().params
    path, shows = given.get("config"), given.get("show_config", False)
    if path is None and os.path.isfile(CONFIG_FILE):
        path = Path(CONFIG_FILE)
    if ctx.resilient_parsing or not (path or shows):
        return command
    from sbert_search.cli.options.config_file import ConfigFile, shown_instead  # only when needed

    if path is not None:
        contexts = [ctx]
        while contexts[0].parent is not None:
            contexts.insert(0, contexts[0].parent)
        groups = [each.command for each in contexts if isinstance(each.command, click.Group)]
        names = [*(each.info_name or "" for each in contexts[1:]), name]
        file = ConfigFile(path)
        ctx.default_map = {name: file.defaults(command, groups, names)}
        ctx.meta[_IN_TABLE] = file.own(groups, names).keys()
    return shown_instead(command, path) if shows else command


def is_for_all_commands(ctx: click.Context, name: str) -> bool:
    """Whether an option has its value from the top of the configuration file."""
    in_file = ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    return in_file and name not in ctx.meta[_IN_TABLE]
