"""What a process may have: how much of it is in use, and less of it for a while."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator


def open_descriptors() -> int:
    """Count the descriptors that this process holds, but not the one that counting takes."""
    return len(os.listdir("/dev/fd")) - 1


@contextlib.contextmanager
def limited(resource_id: int, limit: int) -> Iterator[None]:
    """Give this process less of something."""
    soft, hard = resource.getrlimit(resource_id)
    resource.setrlimit(resource_id, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource_id, (soft, hard))
