"""Recognise errors that occur if memory runs out. Nothing is imported that needs much memory."""

from __future__ import annotations

import sys

# Parts of the messages of errors that occur if memory runs out. The messages of _OUT_OF_MEMORY are
# from Python's threads, torch's allocators and C++. The messages of _MAYBE_OUT_OF_MEMORY are from
# oneDNN and name no cause, so they count as lack of memory only if the memory of this process is
# limited.
_OUT_OF_MEMORY = (
    "can't start new thread",
    "can't allocate lock",
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
)
_MAYBE_OUT_OF_MEMORY = ("could not create a primitive", "could not create a memory object")


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, such as a MemoryError or an error of torch."""
    if isinstance(error, MemoryError):
        return True
    message = str(error)
    if any(words in message for words in _OUT_OF_MEMORY):
        return True
    return has_memory_limit() and any(words in message for words in _MAYBE_OUT_OF_MEMORY)


def has_memory_limit() -> bool:
    """Whether the address space of this process is limited (ulimit -v)."""
    if sys.platform == "win32":
        return False
    import resource

    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
