"""Runs the example and the documentation page of a framework in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.cli.process import ROOT, environment


def printed_by(name: str, folder: Path) -> str:
    """Return what ``examples/integrations/NAME.py`` prints; it is short and leaves no file."""
    script = ROOT / "examples" / "integrations" / f"{name}.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 40
    printed = _printed(str(script), folder)
    assert list(folder.iterdir()) == []
    return printed


def run_page(name: str, folder: Path) -> None:
    """Run the Python blocks of ``docs/integrations/NAME.md`` from the top to the bottom."""
    page = (ROOT / "docs" / "integrations" / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python[^\n]*\n(.*?)```", page, re.DOTALL)
    assert blocks
    script = folder / "page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    _printed(str(script), folder)


def _printed(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
