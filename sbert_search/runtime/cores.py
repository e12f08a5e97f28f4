"""How many cores a process has to itself, and how many threads it should use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Count the processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def thread_count() -> int:
    """As many threads as there are cores to use, or as OMP_NUM_THREADS says."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) else usable_cores()
