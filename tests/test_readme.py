"""README.md says what is so: commands exist, links lead to files, figures are measured ones.

That its code runs and prints what is shown is tested with the pages of ``docs/``.
"""

from __future__ import annotations

import re
import runpy
import tomllib

import click
import pytest

from sbert_search.cli.main import cli
from sbert_search.wings import installed
from tests.cli.process import ROOT
from tests.without_wing import PAGES

README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLES = runpy.run_path(str(ROOT / "benchmarks/engine_table.py"))["TABLES"]


def test_every_command_named_exists() -> None:
    named = re.findall(r"(?:`|\$ |&& )sbert-search ([a-z][a-z -]*)", README)
    assert len(named) >= 4
    for words in named:
        command: click.Command | None = cli
        for word in words.split():
            if not isinstance(command, click.Group):
                break
            command = command.get_command(click.Context(command), word)
            assert command is not None, f"sbert-search {words}"


def test_both_install_commands_stand_as_they_are_used() -> None:
    assert (
        'python -m pip install -c constraints.txt -e ".[cpu,model]" && sbert-search demo\n'
        in README
    )
    assert (
        'python -m pip install -c constraints.txt -e ".[test]" && python -m pytest -q\n' in README
    )


def test_the_default_install_serves_reads_pdf_and_evaluates() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}
    assert found >= {"httptools", "ir-measures", "msgspec", "pypdf", "starlette", "uvicorn"}


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 1200


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    assert len(links) > 20
    absent = {f"docs/{page}" for wing in PAGES.keys() - installed() for page in PAGES[wing]}
    missing = [link for link in links if link not in absent and not (ROOT / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", TABLES)
def test_a_comparison_of_engines_is_what_was_measured(page: str) -> None:
    table = "\n".join(TABLES[page]())
    assert table in (ROOT / page).read_text(encoding="utf-8"), "run benchmarks/engine_table.py"


def test_every_measurement_names_its_file() -> None:
    table = (ROOT / "docs/measurements.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .*\| (.*) \|$", table, re.MULTILINE)
    named = [re.findall(r"`([^`]+)`", row) for row in rows]
    files = [names for names in named if names]
    assert len(files) == len(rows) - rows.count("file") > 20
    for first, *others in files:
        assert [*ROOT.glob(first)], first
        assert all((ROOT / first).with_name(other).exists() for other in others), others
