"""Run a server: bind its socket, handle signals and shut it down.

Its HTTP connections have deadlines and limits that uvicorn lacks.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, cast

import httptools
import msgspec
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from sbert_search.errors import ConfigError
from sbert_search.serve.access import ServerLimits
from sbert_search.serve.access_log import AccessLog
from sbert_search.serve.app import Context, build_app
from sbert_search.serve.problems import Problem
from sbert_search.serve.state import Served

HEADER_BYTES = 64 << 10  # largest request line with all headers
MAX_HEADERS = 100

_TOO_SLOW_BODY = msgspec.json.encode(Problem(408, "The request did not arrive in time.").body())
_TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_TOO_SLOW_BODY), _TOO_SLOW_BODY)
)


class GuardedProtocol(HttpToolsProtocol):
    """A connection whose client must send headers and body, and read answers, in time."""

    def __init__(
        self,
        limits: ServerLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._reading: asyncio.TimerHandle | None = None
        self._reading_s = limits.header_s
        self._writing: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_headers = True
        self._has_begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request, or close a connection above the limit."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
            return
        self._read_within(self._limits.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadlines."""
        self._stop_reading()
        if self._writing is not None:
            self._writing.cancel()
        super().connection_lost(exc)
        # Python before 3.12 and uvicorn leave reference cycles, so that each connection would stay
        # in memory until the garbage collector looks at all objects.
        vars(self.transport).update(_read_ready_cb=None)
        vars(self).update(cycle=None)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; refuse headers that are too large."""
        if self._in_headers:
            self._header_bytes += len(data)
        self._unset_keepalive_if_required()
        unread = memoryview(data)
        try:
            while unread:
                try:
                    self.parser.feed_data(unread)
                    break
                except httptools.HttpParserUpgrade as offer:
                    unread = unread[offer.args[0] :]  # what follows the parsed head
                    self._parse_without_upgrade()
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._in_headers and self._header_bytes > HEADER_BYTES:
            self.send_400_response("The headers are too large.")

    def on_message_begin(self) -> None:
        """Start the deadline of the headers."""
        super().on_message_begin()
        self._in_headers = self._has_begun = True
        if self._reading is None:
            self._read_within(self._limits.header_s)

    def on_headers_complete(self) -> None:
        """Start the deadline of the body."""
        size = sum(len(name) + len(value) for name, value in self.headers) + len(self.url)
        if size > HEADER_BYTES or len(self.headers) > MAX_HEADERS:
            raise ValueError("too many or too large headers")  # the client gets 400
        if self._offers_upgrade():
            return
        self._in_headers, self._header_bytes = False, 0
        super().on_headers_complete()
        self._read_within(self._limits.body_s)

    def on_message_complete(self) -> None:
        """Stop the deadline of the body."""
        if self._offers_upgrade():
            return
        super().on_message_complete()
        self._stop_reading()
        self._in_headers, self._has_begun = True, False

    def on_response_complete(self) -> None:
        """Restart the deadline of the request that is still being received, if there is one."""
        super().on_response_complete()
        if self._reading is not None:
            self._read_within(self._reading_s)

    def pause_writing(self) -> None:
        """Start the deadline of a client that does not read its answer."""
        super().pause_writing()
        self._writing = self.loop.call_later(self._limits.body_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the deadline of a client that does not read its answer."""
        if self._writing is not None:
            self._writing.cancel()
        super().resume_writing()

    def _offers_upgrade(self) -> bool:
        """Return whether the parser stops because the client offers another protocol.

        Java's HTTP client, for instance, offers HTTP/2 in its first request. The parser does not
        read the body of such a request, so the head is parsed again without the offer.
        """
        return self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers)

    def _parse_without_upgrade(self) -> None:
        """Parse the head that was read last again, without ``Upgrade``."""
        version = self.parser.get_http_version().encode()
        kept = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] != b"upgrade"]
        line = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version)
        # If the old parser has read `Connection: close`, it parses nothing more. The new one gets
        # the same leniency as uvicorn's.
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"".join([line, *kept, b"\r\n"]))

    def _read_within(self, seconds: float) -> None:
        self._stop_reading()
        self._reading_s = seconds
        self._reading = self.loop.call_later(seconds, self._too_slow)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _too_slow(self) -> None:
        """Close the connection; a client that has begun a request is told why.

        While an earlier request of the connection is being answered, the deadline starts again:
        the client would take a 408 for the answer to the earlier request.
        """
        if self._is_answering_earlier():
            self._read_within(self._reading_s)
            return
        answered = not self._in_headers and self.cycle.response_started
        if self._has_begun and not answered and not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
        self.transport.close()

    def _is_answering_earlier(self) -> bool:
        """Return whether a request before the one that is being read has no complete answer."""
        if self._in_headers:
            return self.cycle is not None and not self.cycle.response_complete
        return any(cycle is self.cycle for cycle, _ in self.pipeline)


NOTICE_S = 0.5  # seconds for which `/ready` answers 503 before the server stops listening
_BACKLOG = 2048
# Most connections that the event loop accepts in a row. asyncio takes this number from its argument
# ``backlog``; with `_BACKLOG`, a flood of connections would delay all answers.
_ACCEPTED_AT_ONCE = 16
# Seconds after which a thread must release the GIL if another one waits for it. The thread of a
# model needs the GIL after each step, and the event loop should not keep it for 5 ms, the default.
_SWITCH_S = 0.0005
_COLLECT_ALL_AFTER = 100  # collections of the middle generation; Python's default is 10
_READ_S = 0.05  # time in which the event loop reads the requests of accepted connections
_OWN_FILES = 256  # open files that the server needs besides its connections


def open_socket(host: str, port: int) -> socket.socket:
    """Bind an address and listen."""
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

    ``beside`` is a context that is open while the server runs, for the other tasks of a worker
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
        proxy_headers=bool(served.proxies),
        forwarded_allow_ips=list(served.proxies),
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


@contextmanager
def handled_signals(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], object] | int
) -> Iterator[None]:
    """Handle signals by a function, or by ``signal.SIG_IGN``, until the context ends."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class DrainingServer(uvicorn.Server):
    """A server that reports "not ready" for `NOTICE_S` before it stops listening.

    In a worker, Ctrl-C and a second signal do nothing: they reach all processes at once, and the
    parent process handles them.
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
        numbers = (signal.SIGTERM,) if self._is_worker else (signal.SIGINT, signal.SIGTERM)
        with handled_signals(numbers, self.handle_exit):
            yield

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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept and read what clients have sent so far; then stop listening, and answer it."""
        waiting = select.poll()
        for bound in sockets or ():
            waiting.register(bound, select.POLLIN)
        last_s = time.monotonic() + self._served.limits.drain_s
        while waiting.poll(0) and time.monotonic() < last_s:
            await asyncio.sleep(0.001)  # the event loop accepts `_ACCEPTED_AT_ONCE`
        await asyncio.sleep(_READ_S)
        await super().shutdown(sockets)
