"""The package grows only on purpose: a commit that raises a limit says why."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
import pytest

import sbert_search
from sbert_search.cli.main import cli

PACKAGE = Path(sbert_search.__file__).parent
MODULES, LINES, OPTIONS = 403, 88_684, 803


def test_the_package_is_not_larger_than_agreed() -> None:
    files = list(PACKAGE.rglob("*.py"))
    assert len(files) <= MODULES
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= LINES


def test_the_commands_have_no_more_options_than_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PACKAGE.parent / "benchmarks"))
    option_slots = importlib.import_module("count").option_slots
    assert sum(option_slots(cli, click.Context(cli, info_name="sbert-search"))) <= OPTIONS
