"""Every code block of the documentation runs and prints what is shown, or says what it needs."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from sbert_search.cli.main import run
from sbert_search.wings import installed
from tests.docs.blocks import PAGES, ROOT, Block, agrees, blocks_of, commands_of
from tests.without_wing import PAGES as PAGES_OF_WINGS

RUN = ("python", "console")
SHOWN = ("text", "json", "jsonl", "csv", "toml", "sql")
NEEDS = (
    *("a CUDA device", "a new environment", "a package of its own"),
    *("a Ray cluster", "several machines"),
    *("minutes", "a running server", "the hub", "your own data"),
    "a program that speaks the protocol",
)


def _names(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=_names)
def test_the_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # as in a clone
    monkeypatch.setenv("COLUMNS", "100")
    for name in [name for name in os.environ if name.startswith("SBERT_SEARCH_")]:
        monkeypatch.delenv(name)
    names: dict[str, object] = {}
    printed = None
    for block in blocks_of(page):
        where = f"{_names(page)}:{block.line}"
        if block.title == "Output":
            assert printed is not None, f"{where}: nothing printed this"
            assert agrees(block.body, printed), f"{where} prints\n{printed}"
        elif block.is_file and block.language not in RUN:
            target = tmp_path / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.body, encoding="utf-8")
        elif block.needs or block.language in SHOWN:
            continue
        elif block.language == "python":
            printed = _python(block, names, tmp_path / "block.py")
        else:
            _console(block, where)


@pytest.mark.parametrize("page", PAGES, ids=_names)
def test_a_block_that_does_not_run_says_why(page: Path) -> None:
    for block in blocks_of(page):
        where = f"{_names(page)}:{block.line}"
        assert block.language in (*RUN, *SHOWN), where
        if block.needs:
            assert any(block.needs.startswith(need) for need in NEEDS), where


def _python(block: Block, names: dict[str, object], path: Path) -> str:
    """Run a block with the names that those before it left, and return what it prints."""
    path.write_text(block.body, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        names.update(runpy.run_path(str(path), init_globals=names))
    return out.getvalue()


def _console(block: Block, where: str) -> None:
    commands = commands_of(block)
    for place, (command, shown) in enumerate(commands):
        code, out, err = _command(command)
        expected = block.exit_code if place == len(commands) - 1 else 0
        assert code == expected, f"{where}: {command}\nended with {code}\n{out}{err}"
        printed = out + err if expected else out
        if shown.strip():
            assert agrees(shown, printed), f"{where}: {command}\nprints\n{printed}"


def _command(line: str) -> tuple[int, str, str]:
    """Run sbert-search in this process, where its libraries are loaded, and the rest in a child."""
    words = shlex.split(line)
    if words[0] == "sbert-search" and not set(words) & {"|", ">", "<"}:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(words[1:])
        return code, out.getvalue(), err.getvalue()
    shim = f'sbert-search() {{ "{sys.executable}" -m sbert_search "$@"; }}\n'
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", shim + line], capture_output=True, text=True, env=env)
    return done.returncode, done.stdout, done.stderr


def test_no_output_names_the_folder_of_a_test() -> None:
    named = [_names(page) for page in PAGES if re.search(r"/tmp/|pytest-of", page.read_text())]
    assert named == []


def test_every_public_name_is_described_once() -> None:
    pages = (ROOT / "docs" / "api").glob("*.md")
    described = [
        name for page in pages for name in re.findall(r"^::: (\w+)$", page.read_text(), re.M)
    ]
    if PAGES_OF_WINGS.keys() == installed().keys():
        assert sorted(described) == import_module("sbert_search").__all__
    else:  # a page of the rest may describe names of an absent wing
        assert set(import_module("sbert_search").__all__) <= set(described)
