"""The package grows only on purpose: a commit that raises a limit says why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

import sbert_search
from sbert_search.cli.main import cli

PACKAGE = Path(sbert_search.__file__).parent
MODULES, LINES, OPTIONS = 391, 80_300, 659


def test_the_package_is_not_larger_than_agreed() -> None:
    files = list(PACKAGE.rglob("*.py"))
    assert len(files) <= MODULES
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= LINES


def test_the_commands_have_no_more_options_than_agreed() -> None:
    assert sum(option_counts(cli, click.Context(cli, info_name="sbert-search"))) <= OPTIONS


def option_counts(command: click.Command, context: click.Context) -> Iterator[int]:
    """Yield the number of options of each command below a group."""
    if not isinstance(command, click.Group):
        yield sum(isinstance(each, click.Option) for each in command.params)
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from option_counts(below, click.Context(below, parent=context, info_name=name))
