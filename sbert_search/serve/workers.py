"""Worker processes that answer at one address: their start, replacement and end.

The parent process holds the listening socket and answers nothing itself. If a worker ends,
another one accepts the connections that wait. Decision: docs/decisions.md, "Worker processes share
one listening socket".
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import FrameType

from sbert_search.base.processor import limit_threads
from sbert_search.base.progress import Reporting, note, report_as, reporting, warn
from sbert_search.embed.engines.graph import keeping_graphs
from sbert_search.errors import ConfigError
from sbert_search.serve.access_log import AccessLog
from sbert_search.serve.metrics import Metrics, Sample, Values
from sbert_search.serve.server import NOTICE_S, handled_signals, run, url_of
from sbert_search.serve.state import ServeSettings, open_served

EXCHANGE_S = 1.0  # seconds between two messages of a worker
HUNG_S = 60.0  # a ready worker that sends nothing for this many seconds is killed and replaced
_TICK_S = 0.2
_DRAIN_SPARE_S = 5.0  # seconds from the end of the drain until a worker is killed
_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 30.0  # seconds before a worker that ended early restarts


def run_workers(
    settings: ServeSettings, bound: socket.socket, n: int, log: AccessLog | None = None
) -> None:
    """Answer requests in n processes until SIGTERM or Ctrl-C; then close the listening socket.

    The cores are divided among the workers, unless OMP_NUM_THREADS sets the threads of a worker.
    Each worker imports the function ``emit`` of the log, so it must be at the top level of a
    module.
    """
    if settings.writable:
        raise ConfigError(
            f"--workers {n} and --writable exclude each other, since one process writes to an "
            "index. Start a second server with --writable and one worker at another port; the "
            "workers serve its commits within about a second."
        )
    limit_threads(n)
    _Supervisor(settings, bound, log).run(n)


class _Worker:
    """A worker process, with the content of its last message; its number is from 1."""

    def __init__(self, number: int, start: Callable[[Connection, int], SpawnProcess]) -> None:
        self.number, self._start = number, start
        self._delay_s = _FIRST_DELAY_S
        self.start()

    def start(self) -> None:
        self.link, other = get_context("spawn").Pipe()
        self.process = self._start(other, self.number)
        other.close()
        self.names: Sequence[str] = ()
        self.sample = Sample()
        self.error: Exception | None = None
        self.heard_s = self.started_s = time.monotonic()
        self.restart_s: float | None = None

    @property
    def is_ready(self) -> bool:
        return bool(self.names)

    def receive(self) -> bool:
        """Receive a message; return whether the worker waits for an answer."""
        try:
            message = self.link.recv()
        except (EOFError, OSError):
            self.link.close()
            return False
        self.heard_s = time.monotonic()
        if isinstance(message, Exception):
            self.error = message
            return False
        self.names, self.sample = message
        return True

    def plan_restart(self) -> float:
        """Plan a restart of the worker, later if it ended early; return the delay in seconds."""
        self.link.close()
        lived_s = time.monotonic() - self.started_s
        lasted = self.is_ready and lived_s > _MAX_DELAY_S
        delay_s = 0.0 if lasted else self._delay_s
        self._delay_s = _FIRST_DELAY_S if lasted else min(2 * self._delay_s, _MAX_DELAY_S)
        self.restart_s = time.monotonic() + delay_s
        return delay_s

    def ending(self) -> str:
        code = self.process.exitcode or 0
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"Worker {self.number} ended {how}"


class _Supervisor:
    """The parent process: it starts workers, replaces those that end, and adds up their metrics."""

    def __init__(
        self, settings: ServeSettings, bound: socket.socket, log: AccessLog | None
    ) -> None:
        self._settings, self._bound, self._log = settings, bound, log
        self._signals = 0
        self._ended = Sample()  # metrics of workers that were replaced
        self._workers: list[_Worker] = []

    def run(self, n: int) -> None:
        with handled_signals((signal.SIGINT, signal.SIGTERM), self._count_signal):
            try:
                self._workers = [_Worker(i, self._start) for i in range(1, n + 1)]
                while not self._signals and not all(one.is_ready for one in self._workers):
                    self._listen()
                    self._require_starting()
                if not self._signals:
                    names = ", ".join(self._workers[0].names)
                    note(f"Serving {names} at {url_of(self._bound)}")
                while not self._signals:
                    self._listen()
                    self._replace()
                self._drain()
            finally:
                for worker in self._workers:
                    worker.process.kill()
                    worker.process.join()

    def _start(self, link: Connection, number: int) -> SpawnProcess:
        log = None if self._log is None else replace(self._log, worker=number)
        arguments = (self._settings, self._bound, log, link, reporting(), number)
        process = get_context("spawn").Process(
            target=_work, args=arguments, name=f"worker {number}"
        )
        # The child inherits SIG_IGN: Ctrl-C reaches it too, but only the parent may end it.
        with handled_signals((signal.SIGINT,), signal.SIG_IGN):
            process.start()
        return process

    def _listen(self) -> None:
        """Receive messages for a moment, and answer each with the metrics of the other workers."""
        links = {one.link: one for one in self._workers if not one.link.closed}
        if not links:
            time.sleep(_TICK_S)
        for ready in connection.wait(list(links), timeout=_TICK_S):
            worker = links[ready] if isinstance(ready, Connection) else None
            if worker is not None and worker.receive():
                others = self._ended
                for other in self._workers:
                    others = others if other is worker else others.plus(other.sample)
                with suppress(OSError):
                    worker.link.send(others)

    def _require_starting(self) -> None:
        """Raise the error of a worker that ended before all were ready."""
        for worker in self._workers:
            if worker.error is not None:
                raise worker.error
            if worker.process.exitcode is not None and worker.link.closed:  # it sent no error
                raise ConfigError(
                    f"{worker.ending()} while it started. If memory ran out, pass fewer --workers."
                )

    def _replace(self) -> None:
        """Restart workers that have ended, and kill those that hang."""
        for worker in self._workers:
            now_s = time.monotonic()
            if worker.process.exitcode is None:
                if worker.is_ready and now_s - worker.heard_s > HUNG_S:
                    warn(f"Worker {worker.number} has not answered for {HUNG_S:g} s.")
                    worker.process.kill()
            elif worker.restart_s is None:
                delay_s = worker.plan_restart()
                why = f": {worker.error}" if worker.error else ""
                when = f"in {delay_s:g} s" if delay_s else "now"
                warn(f"{worker.ending()}{why}; another one starts {when}.")
                restarts: Mapping[str, Values] = {"sbert_search_worker_restarts": {(): (1.0,)}}
                gone = Sample(counted=worker.sample.counted)
                self._ended = self._ended.plus(gone).plus(Sample(counted=restarts))
                worker.sample = Sample()
            elif now_s >= worker.restart_s:
                worker.start()

    def _drain(self) -> None:
        """Let the workers finish their requests; a second signal ends them at once."""
        self._bound.close()
        for worker in self._workers:
            worker.process.terminate()
        until_s = time.monotonic() + NOTICE_S + self._settings.limits.drain_s + _DRAIN_SPARE_S
        while self._signals < 2 and time.monotonic() < until_s:
            if all(worker.process.exitcode is not None for worker in self._workers):
                return
            self._listen()

    def _count_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1


def _work(
    settings: ServeSettings,
    bound: socket.socket,
    log: AccessLog | None,
    link: Connection,
    parent: Reporting,
    number: int,
) -> None:
    report_as(parent)
    try:
        served = open_served(settings)
    except Exception as error:
        with suppress(OSError):
            link.send(error)
        raise SystemExit(1) from None
    names = [*served.indexes, *(one.name for one in served.models)]

    @asynccontextmanager
    async def exchanging() -> AsyncIterator[None]:
        task = asyncio.create_task(_exchange(link, names, served.metrics))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    with keeping_graphs(served.graphless if number == 1 else ()):
        run(served, [bound], log, beside=exchanging)


async def _exchange(link: Connection, names: Sequence[str], metrics: Metrics) -> None:
    """Send this worker's metrics to the parent process, and receive those of the other workers.

    In each direction, at most one message is underway, so neither process ever waits to send.
    """
    loop, answered = asyncio.get_running_loop(), asyncio.Event()

    def receive() -> None:
        try:
            metrics.others = link.recv()
        except (EOFError, OSError):  # the parent has died, so it cannot end this process
            loop.remove_reader(link.fileno())
            os.kill(os.getpid(), signal.SIGTERM)
            return
        answered.set()

    loop.add_reader(link.fileno(), receive)
    while True:
        answered.clear()
        with suppress(OSError):
            link.send((names, metrics.sample()))
        await answered.wait()
        await asyncio.sleep(EXCHANGE_S)
