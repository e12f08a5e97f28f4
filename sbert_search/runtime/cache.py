"""The user's cache folder: what is made once, can be made again, and may be removed at any time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbert_search.runtime.disk import files


def cache_folder(name: str) -> Path:
    """Find the folder of one kind of cached things; it need not exist.

    ``$XDG_CACHE_HOME/sbert-search`` holds them all, or ``~/.cache/sbert-search`` without that
    variable or with a relative path in it.

    Source: the XDG Base Directory Specification 0.8.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    root = base if base.is_absolute() else Path("~/.cache").expanduser()
    return root / "sbert-search" / name


def digest_of(key: object) -> str:
    """Name what a JSON value describes."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def remembered(
    name: str, key: object, compute: Callable[[], Any], is_valid: Callable[[Any], bool]
) -> Any:
    """Return what an earlier process computed of the same key, or compute and keep it.

    Args:
        name: Kind of the value; a folder of the cache.
        key: All that the value depends on, as JSON has it.
        compute: Gives a JSON value; what it raises is not kept.
        is_valid: Says whether a value read back can be one; if not it is computed again.
    """
    path = cache_folder(name) / f"{digest_of(key)}.json"
    with contextlib.suppress(OSError, ValueError):
        if is_valid(value := json.loads(path.read_bytes())):
            return value
    value = compute()
    with contextlib.suppress(OSError):  # a read-only home: computed again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace_file(path, json.dumps(value).encode())
    return value
