"""What the records of these scripts say of how they were made, without paths of a machine."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from sbert_search.runtime.provenance import code, library_versions, machine


def made_with() -> dict[str, Any]:
    """Give commit, machine, libraries and the command that is running."""
    return {**code(), "machine": machine(), "libraries": library_versions(), "command": command()}


def command() -> str:
    """Write the running command with the names of options in place of absolute paths."""
    shown = (_shown(before, word) for before, word in pairwise(sys.argv))
    return " ".join(["python", f"eval/{Path(sys.argv[0]).name}", *shown])


def _shown(before: str, word: str) -> str:
    if not Path(word).is_absolute():
        return word
    return before.lstrip("-").upper() if before.startswith("--") else Path(word).name
