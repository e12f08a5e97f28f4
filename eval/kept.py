"""Store the result of a slow step as a JSON file, so that the step runs only once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbert_search.base.files import replace_file


def kept(file: Path, make: Callable[[], Any]) -> Any:
    """Return the JSON value of a file; compute and write it if the file does not exist."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, (json.dumps(make(), indent=1) + "\n").encode())
    return json.loads(file.read_bytes())
