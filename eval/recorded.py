"""Steps whose results are kept, and what a record says of how it was made."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from sbert_search.runtime.files import replace_file
from sbert_search.runtime.provenance import code, library_versions, machine


def kept(file: Path, make: Callable[[], Any]) -> Any:
    """Return what a file holds as JSON, made unless it is there."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, (json.dumps(make(), indent=1) + "\n").encode())
    return json.loads(file.read_bytes())


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
