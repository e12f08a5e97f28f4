"""The number of processor cores that may be used, and of threads to start."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CORES = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Count the processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def physical_cores() -> int:
    """Count the usable cores; several that belong to one physical core (hyper-threads) count once.

    If the system does not tell which cores belong to one physical core, all usable cores count.
    """
    try:
        names = [f"cpu{number}/topology/thread_siblings_list" for number in os.sched_getaffinity(0)]
        return len({(_CORES / name).read_text(encoding="ascii") for name in names})
    except (AttributeError, OSError):
        return usable_cores()


def thread_count() -> int:
    """Return OMP_NUM_THREADS if it is set, otherwise the number of usable cores."""
    return requested_threads() or usable_cores()


def torch_threads() -> int:
    """Return the number of threads that torch starts; torch is not imported.

    If OMP_NUM_THREADS is not set, torch starts one thread for each usable physical core. If it is
    set, torch starts this number of threads. On x86-64, torch is built with MKL, which then limits
    the number to the usable physical cores.
    """
    requested, limit = requested_threads() or physical_cores(), physical_cores()
    return min(requested, limit) if platform.machine() in ("x86_64", "AMD64") else requested


def requested_threads() -> int:
    """Return OMP_NUM_THREADS, or 0 if the variable is not set or is no number.

    Of a list, which has a number for each level of nesting, the first number counts.
    """
    requested = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(requested) if requested.isdecimal() else 0
