"""Load FAISS at its first use, refuse it in a forked process, and limit its threads and memory."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, TypeAlias

from sbert_search.errors import ConfigError, IndexStoreError, install

FaissIndex: TypeAlias = Any  # FAISS ships no types
FaissParameters: TypeAlias = Any

_parsing = threading.Lock()
_loaded_in = 0  # id of the process that loaded FAISS; 0: not loaded


def import_faiss() -> Any:
    """Load FAISS.

    ConfigError if it is not installed; IndexStoreError if this process was forked after it was
    loaded.
    """
    global _loaded_in
    if "faiss" not in sys.modules:
        require_faiss()
    import faiss

    _loaded_in = _loaded_in or os.getpid()
    require_not_forked()
    return faiss


def require_not_forked() -> None:
    """Refuse, by IndexStoreError, a process that was forked after FAISS was loaded.

    A fork does not copy the threads of FAISS, so a search could wait for them forever.
    """
    if _loaded_in not in (0, os.getpid()):
        raise IndexStoreError(
            f"This process was forked from process {_loaded_in}, which had loaded FAISS; the "
            "threads of FAISS do not survive a fork. Start processes with the method spawn, and "
            "open the index in the new process."
        )


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """Limit FAISS to one thread inside the context; do nothing if FAISS is not loaded."""
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


@contextlib.contextmanager
def limited_to_file(n_bytes: int) -> Iterator[None]:
    """Inside the context, let FAISS read no array of more than twice the size of a file.

    Thus a damaged length in the file cannot fill the memory. The limit is one for the process, so
    threads take turns, and the end restores it, since other files may be larger.
    """
    faiss = import_faiss()
    with _parsing:
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(2 * n_bytes)
        try:
            yield
        finally:
            faiss.set_deserialization_vector_byte_limit(before)


def require_faiss() -> None:
    """Check that FAISS is installed, without loading it."""
    if importlib.util.find_spec("faiss") is None:
        raise ConfigError(
            f"FAISS is not installed; use the index spec Flat, or run: {install('cpu')}."
        )
