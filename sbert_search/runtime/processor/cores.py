"""The number of processor cores that may be used, and of threads to start."""

from __future__ import annotations

import os
from pathlib import Path

_CORES = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Count the processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def physical_cores() -> int:
    """Count the usable cores, and those that share the units of one physical core only once.

    Where the system does not tell which cores these are, all usable cores are counted.
    """
    try:
        names = [f"cpu{number}/topology/thread_siblings_list" for number in os.sched_getaffinity(0)]
        return len({(_CORES / name).read_text(encoding="ascii") for name in names})
    except (AttributeError, OSError):
        return usable_cores()


def thread_count() -> int:
    """Return the number of threads that torch starts.

    It is OMP_NUM_THREADS if that is set, and at most one for each usable physical core, since torch
    asks MKL for the number.
    """
    requested = os.environ.get("OMP_NUM_THREADS", "")
    limit = physical_cores()
    return min(int(requested), limit) if requested.isdecimal() and int(requested) else limit
