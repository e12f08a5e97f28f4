"""Run the stages of a pipeline concurrently, in one thread each, with bounded queues between."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class Allowance:
    """Limits the total memory of the items in a pipeline, from its first stage to its last.

    Args:
        limit: Maximum bytes of all items together; a single item may be larger.
    """

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


@dataclass(frozen=True, slots=True)
class _End:
    """The last element of a queue: the producer has ended, or failed with ``error``."""

    error: BaseException | None


def prefetch(items: Iterable[T], depth: int = 2, *, single: bool = False) -> Generator[T]:
    """Yield the items, in order, while a thread produces the next items.

    If producing an item fails, this generator raises the exception after the items that were
    produced before. The caller must close this generator, for example with ``contextlib.closing``,
    also after an error or Ctrl-C. Closing waits for the thread. The thread finishes its current
    item and, if ``items`` is a generator, closes ``items``.

    Args:
        items: The source of the items; only the thread iterates over it.
        depth: Maximum number of produced items that wait; it bounds the memory of the stage.
        single: Whether there is at most one item. Then no thread is started, since it would save no
            time.

    Raises:
        ValueError: ``depth`` is below 1.
    """
    if depth < 1:
        raise ValueError(f"depth is {depth}; it must be at least 1.")
    if single:
        yield from items
        return
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
