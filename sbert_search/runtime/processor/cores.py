"""The number of processor cores that may be used, and of threads to start."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Count the processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def thread_count() -> int:
    """Return OMP_NUM_THREADS if it is set, otherwise the number of usable cores."""
    requested = os.environ.get("OMP_NUM_THREADS", "")
    return int(requested) if requested.isdecimal() and int(requested) else usable_cores()
