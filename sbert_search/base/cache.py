"""Caches: the user's folder of results that can be recomputed, and results kept in memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from functools import lru_cache  # noqa: TID251 (wrapped here)
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from sbert_search.base import files

# Age in seconds. An unfinished file that is older than this was left by a killed process, since
# writing a file takes only minutes.
ABANDONED_S = 24 * 3600


def cache_folder(name: str) -> Path:
    """Return the path of the cache folder for one kind of result; the folder need not exist."""
    # XDG Base Directory Specification 0.8, which ignores a relative path.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    root = base if base.is_absolute() else Path(os.path.expanduser("~/.cache"))
    # A user without a home folder, as in some containers, gets a path that cannot be written.
    return (root if root.is_absolute() else Path(os.devnull)) / "sbert-search" / name


def digest_of(key: object) -> str:
    """Return the SHA-256 of a JSON value, in hexadecimal."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def cached_value(name: str, key: object, is_valid: Callable[[Any], bool]) -> Any:
    """Return the cached value of a key; None if no valid value is cached."""
    with contextlib.suppress(OSError, ValueError):
        if is_valid(value := json.loads(_path(name, key).read_bytes())):
            return value
    return None


def _path(name: str, key: object) -> Path:
    return cache_folder(name) / f"{digest_of(key)}.json"


def cached_or_computed(
    name: str, key: object, compute: Callable[[], Any], is_valid: Callable[[Any], bool]
) -> Any:
    """Return the cached value of a key if it is valid, or compute and cache it.

    ``name`` is the cache folder. ``key`` is a JSON value with everything that the value depends on.
    """
    found = cached_value(name, key, is_valid)
    if found is not None:
        return found
    value = compute()
    with contextlib.suppress(OSError):  # a read-only folder: the value is computed again next time
        write_cached(_path(name, key), json.dumps(value).encode())
    return value


def write_cached(path: Path, data: bytes) -> None:
    """Write a file of the cache. If several processes write it at once, the last of them wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for temporary in path.parent.glob("*.tmp"):  # killed processes left the old ones
        with contextlib.suppress(OSError):  # another process removed it
            if time.time() - temporary.stat().st_mtime > ABANDONED_S:
                files.disk.unlink(temporary)
    # A random name: processes in two containers may have the same id.
    with files.replacing(path, ending=f".{os.urandom(8).hex()}.tmp") as file:
        file.write(data)


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class CachedFunction(Protocol[P, R_co]):
    """A function that caches its results by its arguments."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Return the cached result, or compute and cache it."""
        ...

    def cache_clear(self) -> None:
        """Forget all results."""


def typed_lru_cache(maxsize: int) -> Callable[[Callable[P, R_co]], CachedFunction[P, R_co]]:
    """Decorate a function with `functools.lru_cache`, whose own type accepts any arguments."""

    def decorate(function: Callable[P, R_co]) -> CachedFunction[P, R_co]:
        return cast("CachedFunction[P, R_co]", lru_cache(maxsize)(function))

    return decorate
