"""HTTP connections with deadlines and limits that uvicorn lacks."""

from __future__ import annotations

import asyncio

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from sbert_search.serving.limits import ServerLimits
from sbert_search.serving.problems import Problem

HEADER_BYTES = 64 << 10  # largest request line with all headers
MAX_HEADERS = 100

_TOO_SLOW_BODY = msgspec.json.encode(Problem(408, "The request did not arrive in time.").body())
_TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_TOO_SLOW_BODY), _TOO_SLOW_BODY)
)


class GuardedProtocol(HttpToolsProtocol):
    """A connection whose client must send headers and body, and read answers, in time.

    Args:
        limits: Limits of the server.
        config: As for `HttpToolsProtocol`.
        server_state: As for `HttpToolsProtocol`.
        app_state: As for `HttpToolsProtocol`.
        _loop: As for `HttpToolsProtocol`.
    """

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

        The HTTP client of Java, for instance, offers HTTP/2 in its first request. The parser does
        not read the body of such a request, so the head is parsed again without the offer.
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
