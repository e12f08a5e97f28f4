"""Stages of a pipeline that work at the same time: one thread a stage, a bounded queue between."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class Allowance:
    """Bytes that the items of a pipeline may take together, from its first stage to its last.

    Args:
        limit: How many; a single item may be larger.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._taken, self._lifted = limit, 0, False
        self._changed = threading.Condition()

    def take(self, n_bytes: int) -> None:
        """Wait until there is room for an item, or there is no other one."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._taken or self._taken + n_bytes <= self._limit or self._lifted
            )
            self._taken += n_bytes

    def give_back(self, n_bytes: int) -> None:
        """Tell that an item is gone."""
        with self._changed:
            self._taken -= n_bytes
            self._changed.notify_all()

    def close(self) -> None:
        """Let everything pass: the pipeline ends, and nothing may wait for what will not come."""
        with self._changed:
            self._lifted = True
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class _End:
    """The last thing in a queue: the producer is through, or was stopped by an error."""

    error: BaseException | None


def prefetch(items: Iterable[T], depth: int = 2) -> Generator[T]:
    """Yield the items, in order, while a thread already makes the next ones.

    An exception of the producer is raised here, after the items made before it. `close` (by
    ``with contextlib.closing(...)``, so that an error or Ctrl-C in the consumer gets there) waits
    for the thread, which stops after the item it is at and closes its source, if a generator.

    Args:
        items: The source; only the thread touches it.
        depth: How many finished items may wait; the memory bound of the stage.

    Raises:
        ValueError: ``depth`` is below 1.
    """
    if depth < 1:
        raise ValueError(f"depth is {depth}; it must be at least 1.")
    waiting: queue.Queue[T | _End] = queue.Queue(depth)
    stopped = threading.Event()
    # Not a daemon: the interpreter must not die under a thread that is inside native code.
    thread = threading.Thread(target=_produce, args=(items, waiting, stopped), name="prefetch")
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        # A put may be in flight; it is the last one, and the emptied queue has room for it.
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
