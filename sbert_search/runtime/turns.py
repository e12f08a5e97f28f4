"""A fair semaphore, which limits how many threads work at once; no thread waits for ever.

A turn is the right of one thread to work.

See "No more searches at once than cores" and "A fork waits for the searches under way" in
docs/decisions.md.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from types import TracebackType
from weakref import WeakSet

FORK_WAIT_S = 10.0


class Turns:
    """Context manager that lets ``n_turns`` threads work at once; the others queue in FIFO order.

    When a thread ends its turn, the turn goes to the thread that has waited longest. A
    `threading.Semaphore` would give the turn to the thread that asks next. This is usually the
    thread that has just finished, so a few threads in a loop would starve all others. A thread that
    has a turn can enter again without waiting.

    A fork first waits until the other threads have finished their turns. Without this wait, locks
    that these threads hold in the middle of their work, also inside libraries, would stay locked in
    the child process. If the wait takes `FORK_WAIT_S` seconds, or at Ctrl-C, the fork takes place
    without further waiting, and locks may stay locked in the child. If two threads that have a turn
    fork at the same time, each waits for the turn of the other until the time is over or Ctrl-C. In
    the child all turns are free, except the turn of the forking thread.

    Args:
        n_turns: Number of threads that may work at once.
    """

    def __init__(self, n_turns: int) -> None:
        self.n_turns = n_turns
        self._local = threading.local()
        self._renew(0)
        fork_handlers.all.add(self)

    def __enter__(self) -> None:
        depth = self._depth
        if depth == 0:
            self._await_turn()
        self._local.depth = depth + 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._local.depth = self._depth - 1
        if self._local.depth == 0:
            self._pass_on()

    @property
    def n_waiting(self) -> int:
        """Number of waiting threads."""
        return len(self._waiting)

    @property
    def _depth(self) -> int:
        """Number of contexts of this object that this thread has entered and not left."""
        return getattr(self._local, "depth", 0)

    def _await_turn(self, *, first: bool = False, timeout_s: float = -1) -> bool:
        """Wait for a turn, and return whether this thread has got one.

        Args:
            first: Whether to queue before all other waiting threads.
            timeout_s: Seconds after which to stop waiting; -1: wait for ever.
        """
        with self._guard:
            if self._n_free:  # then no thread is waiting
                self._n_free -= 1
                return True
            gate = threading.Lock()  # `_pass_on` of another thread releases it
            gate.acquire()
            (self._waiting.appendleft if first else self._waiting.append)(gate)
        has_turn = False
        try:
            has_turn = gate.acquire(timeout=timeout_s)
        finally:
            if not has_turn:  # Ctrl-C or a timeout
                self._stop_waiting(gate)
        return has_turn

    def _stop_waiting(self, gate: threading.Lock) -> None:
        with self._guard:
            waits = gate in self._waiting
            if waits:
                self._waiting.remove(gate)
        if not waits:  # another thread has just given its turn to this thread: pass it on
            self._pass_on()

    def _pass_on(self) -> None:
        """Give the turn to the first waiting thread; if no thread waits, the turn becomes free."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._n_free += 1

    def _renew(self, n_taken: int) -> None:
        """Make all turns free except ``n_taken``, with no thread waiting."""
        self._guard = threading.Lock()
        self._n_free = self.n_turns - n_taken
        self._waiting: deque[threading.Lock] = deque()

    def _take_others(self, end: float, taken: list[Turns]) -> None:
        """Take all turns except that of this thread, but none after the time ``end``.

        Args:
            end: A time of `time.monotonic`.
            taken: A list; this object is appended once for each turn that was taken. After Ctrl-C
                the list has the turns that were taken before.
        """
        for _ in range(self.n_turns - min(self._depth, 1)):
            if not self._await_turn(first=True, timeout_s=max(0.0, end - time.monotonic())):
                return
            taken.append(self)


class _Fork:
    """Hooks that take the turns of all other threads while one thread of this process forks."""

    def __init__(self) -> None:
        self.all: WeakSet[Turns] = WeakSet()
        # Without this lock two forking threads would each take some of the turns, and wait for the
        # turns that the other one has taken.
        self._fork_lock = threading.Lock()
        self._local = threading.local()

    def before(self) -> None:
        end = time.monotonic() + FORK_WAIT_S
        # Ctrl-C may end this method anywhere. Python then forks all the same, and calls the hooks
        # for after the fork. These hooks read the attributes that are set first here.
        self._local.has_lock, self._local.taken = False, []
        self._local.has_lock = self._fork_lock.acquire(timeout=FORK_WAIT_S)
        if self._local.has_lock:
            for turns in list(self.all):
                turns._take_others(end, self._local.taken)

    def after_in_parent(self) -> None:
        try:
            while self._local.taken:
                self._local.taken.pop()._pass_on()
        finally:
            if self._local.has_lock:
                self._fork_lock.release()

    def after_in_child(self) -> None:
        self._fork_lock, self._local.taken = threading.Lock(), []
        for turns in self.all:
            turns._renew(min(turns._depth, 1))


fork_handlers = _Fork()
os.register_at_fork(
    before=fork_handlers.before,
    after_in_parent=fork_handlers.after_in_parent,
    after_in_child=fork_handlers.after_in_child,
)
