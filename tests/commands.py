"""Commands in this process, found as a user finds them: by the script of `pyproject.toml`."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Done:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """What it printed with ``--json``."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments: object) -> Done:
    """Run one command line to its end."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _ = scripts["scripts"]["sbert-search"].split(":")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = importlib.import_module(module).run(list(map(str, arguments)))
    return Done(code, out.getvalue(), err.getvalue())


def told(*arguments: object) -> list[dict[str, Any]]:
    """Run a command that succeeds, with ``--json`` and ``--quiet``; return what it printed."""
    done = run(*arguments, "--json", "--quiet")
    assert done.code == 0, done.err
    return done.records
