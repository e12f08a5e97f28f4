"""The command line as a real process, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS = (sys.executable, "-m", "sbert_search")


@dataclass(frozen=True)
class Done:
    """How a process ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give a child our code whatever its folder is, and none of the caller's own settings."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SBERT_SEARCH_")}
    return inherited | {"PYTHONPATH": str(ROOT), "COLUMNS": "100", **(variables or {})}


def command(*arguments: object, launcher: Sequence[str] = OURS) -> list[str]:
    return [*launcher, *map(str, arguments)]


def sbert_search(
    *arguments: object,
    cwd: Path | None = None,
    stdin: str = "",
    launcher: Sequence[str] = OURS,
    env: Mapping[str, str] | None = None,
) -> Done:
    """Run one command to its end."""
    done = subprocess.run(
        command(*arguments, launcher=launcher),
        cwd=cwd,
        input=stdin.encode(),
        capture_output=True,
        timeout=120,
        env=environment(env),
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
