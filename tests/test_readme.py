"""The README does what it says: its example prints its output, its commands run and exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from sbert_search.cli.main import cli
from tests.cli.process import ROOT, environment, sbert_search

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs.jsonl").write_text(block("json"), encoding="utf-8")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "germs"}\n')
    return tmp_path


def test_the_example_prints_its_output(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block("python")],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment({"HF_HUB_OFFLINE": "1"}),
    )
    assert done.stdout == block("text"), done.stderr


def test_every_command_runs(folder: Path) -> None:
    for line in block("console").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "sbert-search"
        done = sbert_search(*arguments, cwd=folder, env={"SBERT_SEARCH_MODEL": "hashing"})
        assert done.code == 0, f"{line}\n{done.err}"


def test_every_command_named_exists() -> None:
    named = re.findall(r"sbert-search ([a-z][a-z -]*)", README)
    assert len(named) > 10
    for words in named:
        command: click.Command | None = cli
        for word in words.split():
            if not isinstance(command, click.Group):
                break
            command = command.get_command(click.Context(command), word)
            assert command is not None, f"sbert-search {words}"


def test_both_set_up_commands_stand_as_they_are_used() -> None:
    assert (
        'python -m pip install -c constraints.txt -e ".[cpu,model]" && sbert-search demo\n'
        in README
    )
    assert (
        'python -m pip install -c constraints.txt -e ".[test]" && python -m pytest -q\n' in README
    )


def test_every_measurement_names_its_file() -> None:
    table = (ROOT / "docs/measurements.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .*\| (.*) \|$", table, re.MULTILINE)
    named = [re.findall(r"`([^`]+)`", row) for row in rows]
    files = [names for names in named if names]
    assert len(files) == len(rows) - rows.count("file") > 20
    for first, *others in files:
        assert [*ROOT.glob(first)], first
        assert all((ROOT / first).with_name(other).exists() for other in others), others
