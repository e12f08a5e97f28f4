"""Runs an example of a framework in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.process import ROOT, environment


def printed_by(name: str, folder: Path) -> str:
    """Return what ``examples/integrations/NAME.py`` prints; it is short and leaves no file."""
    script = ROOT / "examples" / "integrations" / f"{name}.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 40
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout
