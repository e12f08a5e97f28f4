"""Run a server: bind its socket, handle signals and shut it down."""

from __future__ import annotations

import gc
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn

from sbert_search.errors import ConfigError
from sbert_search.serving.access_log import AccessLog
from sbert_search.serving.app import Context, build_app
from sbert_search.serving.limits import ServerLimits
from sbert_search.serving.protocol import GuardedProtocol
from sbert_search.serving.state import Served

NOTICE_S = 0.5  # seconds for which `/ready` answers 503 before the server stops listening
_BACKLOG = 2048
# Most connections that the event loop accepts in a row. asyncio takes this number from its argument
# ``backlog``; with `_BACKLOG`, a flood of connections would delay all answers.
_ACCEPTED_AT_ONCE = 16
# Seconds after which a thread must release the GIL if another one waits for it. The thread of a
# model needs the GIL after each step, and the event loop should not keep it for 5 ms, the default.
_SWITCH_S = 0.0005
_COLLECT_ALL_AFTER = 100  # collections of the middle generation; Python's default is 10
_OWN_FILES = 256  # open files that the server needs besides its connections


def open_socket(host: str, port: int) -> socket.socket:
    """Bind an address and listen.

    Raises:
        ConfigError: The address cannot be bound: it is in use, or not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(
            f"--host {host} --port {port} cannot be bound: {error}. Name another port, or end the "
            "process that uses it."
        ) from error
    return bound


def url_of(bound: socket.socket) -> str:
    """Return the address of a bound socket as a URL."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    served: Served,
    bound: Sequence[socket.socket],
    log: AccessLog | None = None,
    *,
    beside: Context | None = None,
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; requests that have begun get their answers.

    Args:
        served: What to serve.
        bound: Listening sockets.
        log: The access log; None: there is none.
        beside: A context that is open while the server runs, for the other tasks of a worker
            process; None: this process is no worker.
    """
    limits = within_open_files(served.limits)
    sys.setswitchinterval(_SWITCH_S)
    # A collection of all objects stops all answers: with 10,000 open connections for 0.2 s.
    gc.freeze()  # the collector skips all objects that exist now, such as indexes and models
    gc.set_threshold(*gc.get_threshold()[:2], _COLLECT_ALL_AFTER)
    config = uvicorn.Config(
        build_app(served, log, beside=beside),
        http=cast("Any", partial(GuardedProtocol, limits)),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="error",  # a line for each malformed request could fill a disk
        access_log=False,
        server_header=False,
        backlog=_ACCEPTED_AT_ONCE,
        timeout_keep_alive=math.ceil(limits.keep_alive_s),
        timeout_graceful_shutdown=max(1, int(limits.drain_s)),
    )
    DrainingServer(config, served, is_worker=beside is not None).run(sockets=list(bound))


def within_open_files(limits: ServerLimits) -> ServerLimits:
    """Raise the process's limit on open files; return limits whose connections fit into it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + _OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    return replace(limits, connections=max(16, soft - _OWN_FILES))


class DrainingServer(uvicorn.Server):
    """A server that reports "not ready" for `NOTICE_S` before it stops listening.

    Args:
        config: Settings of uvicorn.
        served: What it serves; its ``draining`` is set when the shutdown begins.
        is_worker: Whether it is one of several processes. Then Ctrl-C and a second signal do
            nothing: they reach all processes at once, and the parent process handles them.
    """

    def __init__(self, config: uvicorn.Config, served: Served, *, is_worker: bool = False) -> None:
        super().__init__(config)
        self._served, self._is_worker = served, is_worker
        self._exit_at_s: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; then set the backlog to `_BACKLOG`, since uvicorn has set `_ACCEPTED_AT_ONCE`."""
        await super().startup(sockets)
        for bound in sockets or ():
            bound.listen(_BACKLOG)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals without raising them again, so that the process exits with 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = (signal.SIGTERM,) if self._is_worker else (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown; a second signal ends the process at once, unless it is a worker."""
        if self._served.draining:
            if self._is_worker:
                return
            os._exit(0)  # other exits wait for an update that runs
        self._served.draining = True
        self._exit_at_s = time.monotonic() + NOTICE_S

    async def on_tick(self, counter: int) -> bool:
        """Let the server exit when `NOTICE_S` is over; uvicorn calls this about every 0.1 s."""
        if self._exit_at_s is not None and time.monotonic() >= self._exit_at_s:
            self.should_exit = True
        return await super().on_tick(counter)
