"""The memory limit of the process, for a part of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sbert_search.base.memory import set_memory_limit


@contextmanager
def memory_limited(limit_bytes: int | None) -> Iterator[None]:
    """Limit the memory of this process until the context ends."""
    before = set_memory_limit(limit_bytes)
    try:
        yield
    finally:
        set_memory_limit(before)
