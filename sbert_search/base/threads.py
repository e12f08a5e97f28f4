"""Threads: stages of a pipeline at once, a fair limit on work, and threads for coroutines.

A turn is the right of one thread to work. See "No more searches at once than cores" in
docs/decisions.md. A fork waits for the turns under way, so that no lock is held in the child.
"""

from __future__ import annotations

import ctypes
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakSet

from sbert_search.base.cache import typed_lru_cache

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


T = TypeVar("T")


class Allowance:
    """Limits the total bytes of the items in a pipeline; a single item may be larger."""

    def __init__(self, limit: int) -> None:
        self._limit, self._taken, self._lifted = limit, 0, False
        self._changed = threading.Condition()

    def take(self, n_bytes: int) -> None:
        """Wait until an item fits or no other item is in the pipeline; then add its bytes."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._taken or self._taken + n_bytes <= self._limit or self._lifted
            )
            self._taken += n_bytes

    def give_back(self, n_bytes: int) -> None:
        """Subtract the bytes of an item that left the pipeline."""
        with self._changed:
            self._taken -= n_bytes
            self._changed.notify_all()

    def close(self) -> None:
        """Lift the limit when the pipeline ends, so that no thread waits for ever."""
        with self._changed:
            self._lifted = True
            self._changed.notify_all()


class _End(NamedTuple):
    """The last element of a queue: the producer has ended, or failed with ``error``."""

    error: BaseException | None


def prefetch(items: Iterable[T], depth: int = 2) -> Generator[T]:
    """Yield the items, in order, while a thread produces up to ``depth`` next ones.

    An exception of the thread is raised after the items produced before. The caller must close this
    generator, also after an error or Ctrl-C: closing waits for the thread, which finishes its item
    and closes ``items`` if that is a generator.
    """
    if depth < 1:
        raise ValueError(f"depth is {depth}; it must be at least 1.")
    waiting: queue.Queue[T | _End] = queue.Queue(depth)
    stopped = threading.Event()
    # Not a daemon: the interpreter must not exit while the thread runs native code.
    thread = threading.Thread(target=_produce, args=(items, waiting, stopped), name="prefetch")
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        # The thread may be blocked because the queue is full; emptying the queue lets it finish.
        while not waiting.empty():
            waiting.get_nowait()
        thread.join()


def _produce(items: Iterable[T], waiting: queue.Queue[T | _End], stopped: threading.Event) -> None:
    error: BaseException | None = None
    try:
        source = iter(items)
        for item in source:
            waiting.put(item)
            if stopped.is_set():
                break
        if isinstance(source, Generator):
            source.close()
    except BaseException as raised:
        error = raised
    if not stopped.is_set():
        waiting.put(_End(error))


FORK_WAIT_S = 10.0


class Turns:
    """Context manager that lets ``n_turns`` threads work at once; the others queue in FIFO order.

    With a `threading.Semaphore`, a few threads in a loop would starve all others. A thread that has
    a turn can enter again without waiting.

    A fork first waits until the other threads have finished their turns. Otherwise locks that these
    threads hold, also inside libraries, would stay locked in the child. After `FORK_WAIT_S` seconds
    or Ctrl-C the fork takes place with that risk; two threads with a turn that fork at once wait
    that long for each other. In the child all turns are free, except that of the forking thread.
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
        """Wait for a turn, before all others if ``first``; return whether this thread got one."""
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
        """Take all turns but that of this thread, until ``end`` of `time.monotonic`."""
        for _ in range(self.n_turns - min(self._depth, 1)):
            if not self._await_turn(first=True, timeout_s=max(0.0, end - time.monotonic())):
                return
            taken.append(self)  # at once, so that after Ctrl-C the list has all turns taken


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


_SOFT = 1  # omp_pause_soft in omp.h: end the threads, keep the settings


def end_idle_workers() -> None:
    """End the worker threads with which torch computes in the calling thread, until its next work.

    Each thread that computes with torch has its own team of worker threads. If all teams together
    have more threads than there are cores, GNU OpenMP lets waiting workers sleep at once (libgomp,
    config/linux/wait.h: gomp_throttled_spin_count), and each parallel operation of any team must
    first wake its workers. Nothing happens if torch does not run on GNU OpenMP.
    """
    if "torch" in sys.modules and (pause := _pause_function()) is not None:
        pause(_SOFT)


@typed_lru_cache(maxsize=1)
def _pause_function() -> Callable[[int], int] | None:
    """Return omp_pause_resource_all (OpenMP 5.0, section 3.2.44) of the libgomp of torch."""
    torch_folder = Path(str(sys.modules["torch"].__file__)).parent
    found = [*torch_folder.glob("lib/libgomp*"), *torch_folder.parent.glob("torch.libs/libgomp*")]
    for path in found:
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            pause = library.omp_pause_resource_all
        except (OSError, AttributeError):  # not loaded, or older than OpenMP 5.0
            continue
        pause.argtypes, pause.restype = (ctypes.c_int,), ctypes.c_int
        return pause
    return None


class Threads:
    """Runs functions in up to ``n`` threads, for coroutines; a fork starts its own threads."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._pid = -1
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread and return its result.

        If the awaiting task is cancelled, a function that is not called yet is never called; a
        running one ends, and its result is dropped.
        """
        import asyncio
        from contextvars import copy_context

        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._started(), copy_context().run, function)

    def _started(self) -> ThreadPoolExecutor:
        if self._executor is None or self._pid != os.getpid():
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(self._n, thread_name_prefix="sbert-search")
            self._pid = os.getpid()
        return self._executor
