"""A bound on how many threads work at once, under which no thread waits for ever."""

from __future__ import annotations

import os
import threading
from collections import deque
from types import TracebackType
from weakref import WeakSet


class Turns:
    """Lets so many threads work at once; the others wait in line, first come, first served.

    A context manager. A turn that ends goes to the thread that has waited longest, not to whoever
    asks next, as with `threading.Semaphore`: there, the thread that has just ended its turn is the
    next to ask, and a few threads that work in a loop keep all others out. A thread that has a turn
    enters again without waiting. In a forked child all turns are free but that of the thread that
    forked, since no other thread is there.

    Args:
        n_turns: How many threads.
    """

    def __init__(self, n_turns: int) -> None:
        self.n_turns = n_turns
        self._mine = threading.local()
        self._renew(0)
        _all.add(self)

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

    def _await_turn(self) -> None:
        with self._guard:
            if self._n_free:  # then nobody waits
                self._n_free -= 1
                return
            gate = threading.Lock()
            gate.acquire()
            self._line.append(gate)
        try:
            gate.acquire()  # until `_pass_on` of another thread opens it
        except BaseException:  # Ctrl-C
            with self._guard:
                waits = gate in self._line
                if waits:
                    self._line.remove(gate)
            if not waits:  # the turn came at the same moment
                self._pass_on()
            raise

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


_all: WeakSet[Turns] = WeakSet()


def _renew_all() -> None:
    for turns in list(_all):
        turns._renew(1 if turns._depth else 0)


os.register_at_fork(after_in_child=_renew_all)
