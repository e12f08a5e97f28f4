"""The examples in the help of each command: real command lines, three for each command."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

import click
import pytest

from sbert_search.cli.commands import COMMANDS
from sbert_search.cli.main import cli
from sbert_search.wings import commands as wing_commands
from tests.cli.lines import NEED_AN_EXTRA, NEVER_END, commands
from tests.cli.process import sbert_search

SHOWN = {
    name: command.examples
    for name, command in {**COMMANDS, **wing_commands()}.items()
    if command.examples
}
LINES = [(name, line) for name, lines in SHOWN.items() for line in lines]


def arguments_of(line: str) -> list[str]:
    """Split a line as a shell does; a pipe before it and variables in front of it are left out."""
    words = shlex.split(line.rpartition(" | ")[2])
    return words[words.index("sbert-search") + 1 :]


def parse(arguments: list[str]) -> str:
    """Parse a command line as a run does, without running it; return the name of the command."""
    names: list[str] = []
    with contextlib.ExitStack() as opened:
        context = opened.enter_context(cli.make_context("sbert-search", list(arguments)))
        while isinstance(context.command, click.Group):
            rest = [*context._protected_args, *context.args]
            name, command, rest = context.command.resolve_command(context, rest)
            assert name is not None
            assert command is not None
            context = opened.enter_context(command.make_context(name, rest, parent=context))
            names.append(name)
    return " ".join(names)


def test_every_command_has_three_examples() -> None:
    names = [*(name for name, _ in commands()), *NEED_AN_EXTRA, *NEVER_END]
    assert sorted(names) == sorted(SHOWN)
    assert all(len(set(lines)) == 3 for lines in SHOWN.values())


@pytest.mark.parametrize(("name", "line"), LINES)
def test_every_example_is_a_sound_line_of_its_command(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("my-encoder", "my-model", "my-judge", "my-tokenizer", "my.index", "my-data"):
        os.mkdir(folder)
    os.makedirs("runs/a")
    os.makedirs("runs/b")
    tables = ("queries.jsonl", "pairs.csv", "qrels.txt", "a.trec", "b.trec")
    for file in ("gone.txt", "my.toml", *tables):
        Path(file).touch()
    if line.endswith("--help"):
        with pytest.raises(click.exceptions.Exit) as ended:
            parse(arguments_of(line))
        assert ended.value.exit_code == 0
    else:
        assert parse(arguments_of(line)) == name


def test_a_wrong_example_would_be_noticed() -> None:
    with pytest.raises(click.UsageError, match="--top-k"):
        parse(["search", "my.index", "cats", "--top-k", "3"])


@pytest.mark.parametrize("name", ["index delete", "search", "train bi-encoder", "eval sts"])
def test_the_help_ends_with_the_examples_unwrapped_at_80_columns(name: str) -> None:
    done = sbert_search(*name.split(), "--help", env={"COLUMNS": "80"})
    lines = done.out.splitlines()
    assert [line.strip() for line in lines[-4:]] == ["Examples:", *SHOWN[name]]


def test_every_example_fits_80_columns() -> None:
    assert all(len(line) <= 76 for _, line in LINES), max(LINES, key=lambda pair: len(pair[1]))
