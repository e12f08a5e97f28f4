"""How much memory this process holds, what a budget leaves of it, and when it is given back."""

from __future__ import annotations

import ctypes
import platform
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sbert_search.errors import ConfigError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_... of malloc.h
_KEPT_BYTES = 1 << 30
_GIVEN_BACK_BYTES = 4 << 20  # from this size on a freed block goes back to the kernel at once

MAX_ROW_BYTES = 64 << 20
MAX_BATCH_BYTES = 16 << 20
MAX_WAITING_BYTES = 256 << 20
_FIXED_BYTES = 128 << 20  # of any work on documents: tokens, vectors, postings
_SHARED_BYTES = 1 << 30  # more than this is never used for the rows that are worked on
_FIRST_STEPS = 4  # that show what a process takes


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """What the parts of work on documents may take, in bytes.

    Attributes:
        budget: Of the whole process; None: no limit.
        row: One row of a source, as it is held in memory.
        batch: Documents that are embedded and committed together; one row may be more.
        waiting: Batches between reading and commit, together; one batch may be more.
        work: All of it, beside what the process holds before.
    """

    budget: int | None
    row: int = MAX_ROW_BYTES
    batch: int = MAX_BATCH_BYTES
    waiting: int = MAX_WAITING_BYTES
    work: int = _FIXED_BYTES + _SHARED_BYTES


def shares(budget: int | None) -> Shares:
    """Divide a budget for the whole process; None gives the limits that hold without one.

    Of a row there are up to a dozen copies at a time: its bytes, its text, its words, the columns
    of the commit. So a row gets 1/64 of the budget, and rows together a quarter.
    """
    if budget is None:
        return Shares(budget=None)
    return Shares(
        budget=budget,
        row=min(MAX_ROW_BYTES, budget // 64),
        batch=min(MAX_BATCH_BYTES, budget // 64),
        waiting=min(MAX_WAITING_BYTES, budget // 16),
        work=_FIXED_BYTES + min(_SHARED_BYTES, budget // 4),
    )


class FreedMemory:
    """Memory that steps of training free: glibc keeps blocks of up to 1 GiB for the next step.

    Every step on a CPU asks for large tensors again; given back to the kernel in between, each
    costs a page fault for every 4 KiB. But their sizes differ from step to step, and what is left
    between them adds up, without end. So once the process holds half as much again as at first, it
    gives back what is free. Elsewhere than on glibc nothing happens.
    """

    def __init__(self) -> None:
        """Have it kept from now on."""
        self._libc = _glibc()
        self._first: list[int] = []
        if self._libc is not None:
            self._libc.mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
            self._libc.mallopt(_TRIM_THRESHOLD, 2 * _KEPT_BYTES - 1)

    def after_step(self) -> bool:
        """Give it back if fragments have made the process grow by half; tell whether they have."""
        if self._libc is None:
            return False
        held = anonymous_bytes()
        if len(self._first) < _FIRST_STEPS:
            self._first.append(held)
            return False
        if held <= 1.5 * max(self._first):
            return False
        self._libc.malloc_trim(0)
        return True


def _glibc() -> ctypes.CDLL | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL(None)


def let_freed_memory_stay() -> None:
    """Have glibc keep up to 62 MiB of freed memory for the next request, from now on.

    It gives back what exceeds twice the largest block that was ever mapped and freed, of those up
    to 32 MiB: so one such block is enough. A step of an encoder on a CPU asks for the same tensors
    again, a search for the same scores, and would pay a page fault for every 4 KiB. Elsewhere than
    on glibc nothing happens.

    Source: mallopt(3), M_MMAP_THRESHOLD, "dynamic".
    """
    np.empty(31 << 20, dtype=np.uint8)


def require(memory_bytes: int | None, needed_bytes: int, what: str) -> None:
    """Refuse, before any of it, work that a budget for the whole process cannot hold.

    Args:
        memory_bytes: The budget; None: no limit.
        needed_bytes: What the work takes beside what the process holds already.
        what: The work, as the beginning of a sentence.

    Raises:
        ConfigError: With both numbers.
    """
    left = room(memory_bytes)
    if left is not None and needed_bytes > left:
        raise ConfigError(
            f"{what} takes about {mib(needed_bytes)}, and {mib(left)} of --memory are left; "
            f"allow {mib(needed_bytes + anonymous_bytes())} or more."
        )


def give_back_freed(memory_bytes: int | None) -> None:
    """Have glibc give freed blocks of 4 MiB and more to the kernel at once, if there is a budget.

    Otherwise what a large row has taken stays with the thread that read it. Elsewhere than on
    glibc nothing happens.
    """
    libc = None if memory_bytes is None else _glibc()
    if libc is not None:
        libc.mallopt(_MMAP_THRESHOLD, _GIVEN_BACK_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, 4 * _GIVEN_BACK_BYTES)


def mib(n_bytes: float) -> str:
    """Show a size in MiB, with a decimal where it is small."""
    return f"{n_bytes / 2**20:,.{0 if n_bytes >= 10 << 20 else 1}f} MiB"
