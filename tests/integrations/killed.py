"""Runs Python code in a process that kills itself at the end of the code."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.process import environment


def run_and_kill(code: str, folder: Path) -> None:
    """Run code with ``folder`` as ``sys.argv[1]``, and SIGKILL right after its last statement."""
    script = f"import os, sys\n{code}\nos.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
