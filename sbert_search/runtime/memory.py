"""Memory of this process: measure it, divide a budget, control when glibc returns it."""

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
_GIVEN_BACK_BYTES = 4 << 20  # glibc returns freed blocks of this size to the kernel at once

MAX_ROW_BYTES = 64 << 20
MAX_BATCH_BYTES = 16 << 20
MAX_WAITING_BYTES = 256 << 20
_FIXED_BYTES = 128 << 20  # for tokens, vectors and postings of any work on documents
_SHARED_BYTES = 1 << 30  # maximum for the rows being processed
_FIRST_STEPS = 4  # training steps that show the normal memory of the process


def anonymous_bytes() -> int:
    """Return the memory that the kernel cannot drop: RssAnon + RssShmem, without mapped files.

    Without /proc it is the peak resident memory, which is an upper bound.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others KiB
    lines = (line.split() for line in status.read_text(encoding="ascii").splitlines())
    return sum(int(f[1]) * 1024 for f in lines if f[0] in ("RssAnon:", "RssShmem:"))


def room(memory_bytes: int | None) -> int | None:
    """Return the unused part of a memory budget of the process, in bytes; None: no limit."""
    return None if memory_bytes is None else max(memory_bytes - anonymous_bytes(), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Memory limits of the stages that process documents, in bytes.

    Attributes:
        budget: Limit of the whole process; None: no limit.
        row: One row of a source in memory.
        batch: Documents that are embedded and committed together; a single row may exceed it.
        waiting: All batches between reading and commit; a single batch may exceed it.
        work: All stages together, in addition to the memory held before.
    """

    budget: int | None
    row: int = MAX_ROW_BYTES
    batch: int = MAX_BATCH_BYTES
    waiting: int = MAX_WAITING_BYTES
    work: int = _FIXED_BYTES + _SHARED_BYTES


def shares(budget: int | None) -> Shares:
    """Divide a memory budget of the process; None gives the default limits.

    A row exists in up to a dozen copies at a time: its bytes, its text, its words, the columns of
    the commit. So a row gets 1/64 of the budget, and all rows together a quarter.
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
    """Makes glibc keep freed blocks of up to 1 GiB for the next training step.

    Every training step on a CPU allocates large tensors. If glibc returned them to the kernel after
    each step, the next step would pay a page fault for every 4 KiB. But tensor sizes vary between
    steps, so kept memory fragments and grows without bound. Once the process holds 1.5 times its
    initial memory, the free blocks are returned. Without glibc this class does nothing.
    """

    def __init__(self) -> None:
        """Make glibc keep freed blocks from now on."""
        self._libc = _glibc()
        self._first: list[int] = []
        if self._libc is not None:
            self._libc.mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
            self._libc.mallopt(_TRIM_THRESHOLD, 2 * _KEPT_BYTES - 1)

    def after_step(self) -> bool:
        """Return free blocks to the kernel if the process grew by half; return whether it did."""
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
    """Make glibc keep up to 62 MiB of freed memory for later allocations.

    An encoder step on a CPU allocates the same tensors again, and a search the same scores; fresh
    memory would cost a page fault for every 4 KiB. glibc adapts: when a mapped block of up to
    32 MiB is freed, it keeps up to twice that size from then on. So this function allocates and
    frees one block of 31 MiB. Without glibc it has no effect. The measurement is under "glibc keeps
    up to 62 MiB of freed memory" in docs/decisions.md.

    Source: mallopt(3), M_MMAP_THRESHOLD, "dynamic".
    """
    np.empty(31 << 20, dtype=np.uint8)


def require(memory_bytes: int | None, needed_bytes: int, what: str) -> None:
    """Refuse work that would exceed the memory budget of the process, before it starts.

    Args:
        memory_bytes: The budget; None: no limit.
        needed_bytes: Memory of the work, in addition to what the process holds.
        what: The work, as the subject of the error message.

    Raises:
        ConfigError: The work needs more memory than the budget leaves.
    """
    left = room(memory_bytes)
    if left is not None and needed_bytes > left:
        raise ConfigError(
            f"{what} takes about {mib(needed_bytes)}, but {mib(left)} of --memory are left; "
            f"allow {mib(needed_bytes + anonymous_bytes())} or more."
        )


def give_back_freed(memory_bytes: int | None) -> None:
    """Make glibc return freed blocks of 4 MiB and more to the kernel at once, if there is a budget.

    Otherwise the memory of a large row stays in the arena of the thread that read it. Without glibc
    this does nothing.
    """
    libc = None if memory_bytes is None else _glibc()
    if libc is not None:
        libc.mallopt(_MMAP_THRESHOLD, _GIVEN_BACK_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, 4 * _GIVEN_BACK_BYTES)


def mib(n_bytes: float) -> str:
    """Format a size in MiB, with one decimal below 10 MiB."""
    return f"{n_bytes / 2**20:,.{0 if n_bytes >= 10 << 20 else 1}f} MiB"
