"""Threads in which the asynchronous methods of an engine run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")


class Threads:
    """Runs functions in up to ``n`` threads, for coroutines that await their results.

    The threads start with the first call; a forked process starts its own threads. The threads of
    `asyncio.to_thread` are not used, since many waiting searches would occupy all of them and block
    other work of the caller.

    Args:
        n: Largest number of threads.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._pid = -1
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread and return its result.

        If the awaiting task is cancelled before the thread has called the function, the function is
        never called. If the function is already running, it runs to its end, and its result is
        dropped.
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
