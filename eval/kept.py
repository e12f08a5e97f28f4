"""Results of steps that are not done twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbert_search.runtime.disk.files import replace_file


def kept(file: Path, make: Callable[[], Any]) -> Any:
    """Return what a file holds as JSON, made unless it is there."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, (json.dumps(make(), indent=1) + "\n").encode())
    return json.loads(file.read_bytes())
