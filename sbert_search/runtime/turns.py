"""A bound on how many threads work at once, under which no thread waits for ever."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from types import TracebackType
from weakref import WeakSet

FORK_WAIT_S = 10.0


class Turns:
    """Lets so many threads work at once; the others wait in line, first come, first served.

    A context manager. A turn that ends goes to the thread that has waited longest, not to whoever
    asks next, as with `threading.Semaphore`: there, the thread that has just ended its turn is the
    next to ask, and a few threads that work in a loop keep all others out. A thread that has a turn
    enters again without waiting.

    A fork waits until the other threads have ended their turns, at most `FORK_WAIT_S`: what they
    have locked in the middle of their work, in libraries too, would stay locked in the child. There
    all turns are free but that of the thread that forked.

    Args:
        n_turns: How many threads.
    """

    def __init__(self, n_turns: int) -> None:
        self.n_turns = n_turns
        self._mine = threading.local()
        self._renew(0)
        _fork.all.add(self)

    def __enter__(self) -> None:
        depth = self._depth
        if depth == 0:
            self._await_turn()
        self._mine.depth = depth + 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._mine.depth = self._depth - 1
        if self._mine.depth == 0:
            self._pass_on()

    @property
    def n_waiting(self) -> int:
        """How many threads wait in line."""
        return len(self._line)

    @property
    def _depth(self) -> int:
        """How many times this thread has entered."""
        return getattr(self._mine, "depth", 0)

    def _await_turn(self, *, first: bool = False, timeout_s: float = -1) -> bool:
        """Get a turn; False when the time was over before (-1: it never is)."""
        with self._guard:
            if self._n_free:  # then nobody waits
                self._n_free -= 1
                return True
            gate = threading.Lock()
            gate.acquire()
            (self._line.appendleft if first else self._line.append)(gate)
        came = False
        try:
            came = gate.acquire(timeout=timeout_s)  # until `_pass_on` of another thread opens it
        finally:
            if not came:  # Ctrl-C, or the time is over
                self._leave_line(gate)
        return came

    def _leave_line(self, gate: threading.Lock) -> None:
        with self._guard:
            waits = gate in self._line
            if waits:
                self._line.remove(gate)
        if not waits:  # the turn came at the same moment
            self._pass_on()

    def _pass_on(self) -> None:
        """Give a turn to the first in line; with nobody there it is free."""
        with self._guard:
            if self._line:
                self._line.popleft().release()
            else:
                self._n_free += 1

    def _renew(self, n_taken: int) -> None:
        self._guard = threading.Lock()
        self._n_free = self.n_turns - n_taken
        self._line: deque[threading.Lock] = deque()

    def _take_others(self, end: float) -> int:
        """Take all turns but this thread's own, up to a time; return how many were to be had."""
        others = range(self.n_turns - min(self._depth, 1))
        wait_s = (max(0.0, end - time.monotonic()) for _ in others)
        turns = (self._await_turn(first=True, timeout_s=wait) for wait in wait_s)
        return sum(itertools.takewhile(bool, turns))


class _Fork:
    """Stops the turns of this process while one of its threads forks."""

    def __init__(self) -> None:
        self.all: WeakSet[Turns] = WeakSet()
        self._one = threading.Lock()  # two that fork at once would wait for each other's turns
        self._mine = threading.local()

    def before(self) -> None:
        end = time.monotonic() + FORK_WAIT_S
        self._mine.is_one = self._one.acquire(timeout=FORK_WAIT_S)
        stopped = list(self.all) if self._mine.is_one else []
        self._mine.taken = [(turns, turns._take_others(end)) for turns in stopped]

    def after_in_parent(self) -> None:
        for turns, count in self._mine.taken:
            for _ in range(count):
                turns._pass_on()
        self._mine.taken = []
        if self._mine.is_one:
            self._one.release()

    def after_in_child(self) -> None:
        self._one, self._mine.taken = threading.Lock(), []
        for turns in self.all:
            turns._renew(min(turns._depth, 1))


_fork = _Fork()
os.register_at_fork(
    before=_fork.before,
    after_in_parent=_fork.after_in_parent,
    after_in_child=_fork.after_in_child,
)
