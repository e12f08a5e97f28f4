"""A fair semaphore: limits how many threads work at once, and no thread waits for ever.

See "No more searches at once than cores" and "A fork waits for the searches under way" in
docs/decisions.md.
"""

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
    """Context manager that lets ``n_turns`` threads work at once; the others queue in FIFO order.

    A finished turn goes to the thread that has waited longest. With `threading.Semaphore` it goes
    to whichever thread asks next, usually the one that has just finished, so that a few threads in
    a loop starve all others. A thread that has a turn can enter again without waiting.

    A fork waits at most `FORK_WAIT_S` until the other threads have finished their turns: locks that
    they hold in the middle of their work, also inside libraries, would stay locked in the child. In
    the child all turns are free, except that of the forking thread.

    Args:
        n_turns: Number of threads that may work at once.
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
        """Number of waiting threads."""
        return len(self._line)

    @property
    def _depth(self) -> int:
        """Number of times this thread has entered without leaving."""
        return getattr(self._mine, "depth", 0)

    def _await_turn(self, *, first: bool = False, timeout_s: float = -1) -> bool:
        """Wait for a turn; return False after ``timeout_s`` (-1: wait for ever)."""
        with self._guard:
            if self._n_free:  # a free turn means that no thread waits
                self._n_free -= 1
                return True
            gate = threading.Lock()
            gate.acquire()
            (self._line.appendleft if first else self._line.append)(gate)
        came = False
        try:
            came = gate.acquire(timeout=timeout_s)  # until `_pass_on` of another thread opens it
        finally:
            if not came:  # Ctrl-C or a timeout
                self._leave_line(gate)
        return came

    def _leave_line(self, gate: threading.Lock) -> None:
        with self._guard:
            waits = gate in self._line
            if waits:
                self._line.remove(gate)
        if not waits:  # another thread passed the turn on at this moment: give it away
            self._pass_on()

    def _pass_on(self) -> None:
        """Give the turn to the first waiting thread; without one it becomes free."""
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
        """Take all turns but this thread's own, until a deadline; return how many were taken."""
        others = range(self.n_turns - min(self._depth, 1))
        wait_s = (max(0.0, end - time.monotonic()) for _ in others)
        turns = (self._await_turn(first=True, timeout_s=wait) for wait in wait_s)
        return sum(itertools.takewhile(bool, turns))


class _Fork:
    """Hooks that take all turns of this process while one of its threads forks."""

    def __init__(self) -> None:
        self.all: WeakSet[Turns] = WeakSet()
        self._one = threading.Lock()  # else two forking threads would wait for each other's turns
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
