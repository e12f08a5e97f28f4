"""How much memory this process holds, and how much of a budget that leaves."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def anonymous_bytes() -> int:
    """Return the memory that the kernel cannot drop: RssAnon + RssShmem, without mapped files.

    Where there is no /proc it is the peak of all resident memory, which is more.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others KiB
    lines = (line.split() for line in status.read_text(encoding="ascii").splitlines())
    return sum(int(f[1]) * 1024 for f in lines if f[0] in ("RssAnon:", "RssShmem:"))


def room(memory_bytes: int | None) -> int | None:
    """Return what a budget for the whole process still leaves, in bytes; None: no limit."""
    return None if memory_bytes is None else max(memory_bytes - anonymous_bytes(), 0)
