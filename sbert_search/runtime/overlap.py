"""Concurrent pipeline stages: one thread per stage, bounded queues between them."""

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
        limit: Bytes; a single item may be larger.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._taken, self._lifted = limit, 0, False
        self._changed = threading.Condition()

    def take(self, n_bytes: int) -> None:
        """Wait until an item fits, or until no other item is in the pipeline."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._taken or self._taken + n_bytes <= self._limit or self._lifted
            )
            self._taken += n_bytes

    def give_back(self, n_bytes: int) -> None:
        """Release the bytes of an item that left the pipeline."""
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
    """The last element of a queue: the producer finished, or failed with an error."""

    error: BaseException | None


def prefetch(items: Iterable[T], depth: int = 2) -> Generator[T]:
    """Yield the items, in order, while a thread makes the next ones.

    An exception of the producer is raised here, after the items made before it. The caller must
    close this generator, for example with ``contextlib.closing``, also after an error or Ctrl-C.
    `close` waits for the thread, which finishes its current item and closes a generator source.

    Args:
        items: The source; only the thread iterates over it.
        depth: Maximum number of finished items that wait; bounds the memory of the stage.

    Raises:
        ValueError: ``depth`` is below 1.
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
        # The thread may be blocked in its last put; emptying the queue lets it finish.
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
