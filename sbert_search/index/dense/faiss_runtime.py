"""Loading FAISS: only where it is needed, never in a fork, with as many threads as are wanted."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

from sbert_search.errors import ConfigError, IndexStoreError

_loaded_in = 0  # the process that loaded FAISS; 0: none yet


def import_faiss() -> Any:
    """Load FAISS.

    Raises:
        ConfigError: It is not installed.
        IndexStoreError: As for `require_own`.
    """
    global _loaded_in
    if "faiss" not in sys.modules:
        require_faiss()
    import faiss

    _loaded_in = _loaded_in or os.getpid()
    require_own()
    return faiss


def require_own() -> None:
    """Refuse a process that is a fork of one that has loaded FAISS.

    Raises:
        IndexStoreError: It is; the threads of FAISS are gone, and a search could wait for them for
            ever.
    """
    if _loaded_in not in (0, os.getpid()):
        raise IndexStoreError(
            f"FAISS was loaded in process {_loaded_in}, of which this one is a fork; its threads "
            "do not survive that. Start processes with the method spawn, and open the index there."
        )


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """Let FAISS, if it is loaded, use one thread."""
    faiss = sys.modules.get("faiss")
    if faiss is None:
        yield
        return
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


def require_faiss() -> None:
    """Fail early where FAISS is needed and not installed, without loading it.

    Raises:
        ConfigError: It is not installed.
    """
    if importlib.util.find_spec("faiss") is None:
        raise ConfigError(
            "FAISS is not installed; run `python -m pip install 'sbert-search[cpu]'`, "
            "or use the index spec Flat."
        )
