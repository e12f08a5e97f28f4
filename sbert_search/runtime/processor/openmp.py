"""End idle OpenMP workers of one thread, so that the workers of another thread are not slowed."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

from sbert_search.runtime.lru import typed_lru_cache

_SOFT = 1  # omp_pause_soft in omp.h: end the threads, keep the settings


def end_idle_workers() -> None:
    """End the worker threads with which torch computes in the calling thread.

    Each thread that computes with torch has its own team of worker threads. Between two parallel
    operations, the team waits. If all teams together have more threads than there are cores, GNU
    OpenMP lets waiting workers sleep at once (libgomp, config/linux/wait.h:
    gomp_throttled_spin_count). Each parallel operation of any team must then first wake its
    workers. This function ends the team of the calling thread, so that other teams are fast. The
    next parallel operation of the calling thread starts a new team.

    Nothing happens if torch does not run on GNU OpenMP, or is not imported.
    """
    if "torch" in sys.modules and (pause := _pause_function()) is not None:
        pause(_SOFT)


@typed_lru_cache(maxsize=1)
def _pause_function() -> Callable[[int], int] | None:
    """Return omp_pause_resource_all (OpenMP 5.0, section 3.2.44) of the libgomp of torch."""
    torch_folder = Path(str(sys.modules["torch"].__file__)).parent
    found = [*torch_folder.glob("lib/libgomp*"), *torch_folder.parent.glob("torch.libs/libgomp*")]
    for path in found:
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            pause = library.omp_pause_resource_all
        except (OSError, AttributeError):  # not loaded, or older than OpenMP 5.0
            continue
        pause.argtypes, pause.restype = (ctypes.c_int,), ctypes.c_int
        return pause
    return None
