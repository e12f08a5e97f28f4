"""Measure the memory of this process, divide a memory budget, and control what glibc keeps."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path
from typing import NamedTuple

from sbert_search.base.processor import of_control_groups
from sbert_search.errors import ConfigError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD in malloc.h
_KEPT_BYTES = 1 << 30
_GIVEN_BACK_BYTES = 4 << 20  # glibc returns freed blocks of this size to the kernel at once

MAX_ROW_BYTES = 64 << 20
MAX_BATCH_BYTES = 16 << 20
MAX_WAITING_BYTES = 256 << 20
_FIXED_BYTES = 128 << 20  # part of `Shares.work` for tokens, vectors and postings
_SHARED_BYTES = 1 << 30  # maximum part of `Shares.work` for the rows being processed
_STEPS_KEPT = 32  # training steps between two returns of free blocks to the kernel
_FIRST_STEPS = 4  # number of training steps that show the normal memory of the process


def anonymous_bytes() -> int:
    """Return the bytes of memory that the kernel cannot drop: RssAnon + RssShmem of /proc."""
    status = Path("/proc/self/status")
    if not status.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # an upper bound
        return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others KiB
    lines = (line.split() for line in status.read_text(encoding="ascii").splitlines())
    return sum(int(f[1]) * 1024 for f in lines if f[0] in ("RssAnon:", "RssShmem:"))


def left_in_container() -> int | None:
    """Return the bytes up to the limit of memory of cgroup version 2; None: no limit.

    What files in memory take is not counted, since the kernel drops it.
    """
    left = []
    names = ("memory.max", "memory.current", "memory.stat")
    for limit, used, stat in of_control_groups("memory", *names):
        if limit.strip().isdecimal():
            kinds = dict(line.split() for line in stat.splitlines())
            left.append(int(limit) - int(used) + int(kinds.get("inactive_file", 0)))
    return min(left, default=None)


_limit: int | None = None  # of the process, in bytes


def set_memory_limit(limit_bytes: int | None) -> int | None:
    """Limit the memory of this process; return the limit before.

    Builds, updates, imports, tunings, compactions, maps and searches then divide this memory among
    their stages, and refuse work that would not fit. Memory-mapped files, such as those of an
    index, do not count.

    Args:
        limit_bytes: Memory of the whole process in bytes; None: no limit, as at the start.

    Raises:
        ConfigError: The limit is not a positive integer.

    Example:
        >>> before = set_memory_limit(4 << 30)
        >>> set_memory_limit(before)
        4294967296
    """
    global _limit
    if limit_bytes is not None and (type(limit_bytes) is not int or limit_bytes < 1):
        raise ConfigError(
            f"The memory limit is {limit_bytes!r}; pass a number of bytes such as 4 << 30, or None."
        )
    before, _limit = _limit, limit_bytes
    if _limit is not None:
        _give_back_freed()
    return before


def limit() -> int | None:
    """Return the memory limit of this process, in bytes; None: no limit."""
    return _limit


def unused() -> int | None:
    """Return what is left of the memory limit, in bytes; None: no limit."""
    return None if _limit is None else max(_limit - anonymous_bytes(), 0)


class Shares(NamedTuple):
    """Memory limits of the stages that process documents, in bytes."""

    budget: int | None  # of the whole process; None: no limit
    row: int = MAX_ROW_BYTES
    batch: int = MAX_BATCH_BYTES  # documents embedded and committed together; a row may exceed it
    waiting: int = MAX_WAITING_BYTES  # batches from reading to commit; a batch may exceed it
    work: int = _FIXED_BYTES + _SHARED_BYTES  # all stages, beside what the process held before


def shares() -> Shares:
    """Divide the memory limit of this process among the stages; without one, use the defaults."""
    budget = _limit
    if budget is None:
        return Shares(budget=None)
    return Shares(
        budget=budget,
        # A row exists in up to a dozen copies at a time: its bytes, text, words, columns, ...
        row=min(MAX_ROW_BYTES, budget // 64),
        batch=batch_bytes(budget),
        waiting=min(MAX_WAITING_BYTES, budget // 16),
        work=_FIXED_BYTES + min(_SHARED_BYTES, budget // 4),
    )


def batch_bytes(budget: int) -> int:
    """Return the bytes of documents that are embedded and committed together within a budget."""
    return min(MAX_BATCH_BYTES, budget // 64)


class FreedMemory:
    """Makes glibc keep freed blocks of up to 1 GiB for the next training step.

    Otherwise each step on a CPU would pay a page fault for every 4 KiB of its large tensors. But
    tensor sizes vary between steps, so the kept memory fragments and grows. `after_step` therefore
    returns the free blocks once the process holds 1.5 times the memory of its first steps, at most
    every 32 steps unless it holds twice that memory. Without glibc this class does nothing.
    """

    def __init__(self) -> None:
        """Make glibc keep freed blocks from now on."""
        self._libc = _glibc()
        self._held_at_first: list[int] = []  # memory after each of the first steps
        self._wait = 0  # steps for which blocks are still kept, unless the memory doubles
        if self._libc is not None:
            # Versions of glibc that enforce the maximum in mallopt(3) refuse more than 32 MiB.
            if not self._libc.mallopt(_MMAP_THRESHOLD, _KEPT_BYTES):
                self._libc.mallopt(_MMAP_THRESHOLD, 32 << 20)
            self._libc.mallopt(_TRIM_THRESHOLD, 2 * _KEPT_BYTES - 1)
            # Otherwise free blocks of an earlier training would count as memory of the first steps.
            self._libc.malloc_trim(0)

    def after_step(self) -> bool:
        """Return free blocks to the kernel if the process has grown too much; whether it has."""
        if self._libc is None:
            return False
        held = anonymous_bytes()
        if len(self._held_at_first) < _FIRST_STEPS:
            self._held_at_first.append(held)
            return False
        self._wait = max(0, self._wait - 1)
        if held <= (2 if self._wait else 1.5) * max(self._held_at_first):
            return False
        self._libc.malloc_trim(0)
        self._wait = _STEPS_KEPT
        return True


def _glibc() -> ctypes.CDLL | None:
    import platform  # slow to import, and not needed for a query

    if platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL(None)


def let_freed_memory_stay() -> None:
    """Make glibc keep up to 62 MiB of freed memory, so that later allocations cost no page faults.

    After a mapped block of up to 32 MiB is freed, glibc keeps up to twice that size (mallopt(3),
    M_MMAP_THRESHOLD, "dynamic"). See "glibc keeps up to 62 MiB of freed memory" in
    docs/decisions.md.
    """
    import numpy as np

    np.empty(31 << 20, dtype=np.uint8)


def require(needed_bytes: int, what: str) -> None:
    """Refuse work whose ``needed_bytes``, beside what the process holds, exceed its limit."""
    left = unused()
    if left is not None and needed_bytes > left:
        raise ConfigError(
            f"{what} takes about {mib(needed_bytes)}, but {mib(left)} of --memory are left; "
            f"allow {mib(needed_bytes + anonymous_bytes())} or more."
        )


def _give_back_freed() -> None:
    """Make glibc return freed blocks of 4 MiB and more to the kernel at once.

    Otherwise it would keep the memory of a large row in the arena of the thread that read the row.
    """
    if (libc := _glibc()) is not None:
        libc.mallopt(_MMAP_THRESHOLD, _GIVEN_BACK_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, 4 * _GIVEN_BACK_BYTES)


def mib(n_bytes: float) -> str:
    """Format a size in MiB, with one decimal below 10 MiB."""
    return f"{n_bytes / 2**20:,.{0 if n_bytes >= 10 << 20 else 1}f} MiB"
