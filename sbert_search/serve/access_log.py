"""The access log: one JSON object for each request, with texts only if --log-texts is given."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sbert_search.serve.queue import Work

_MOST_BYTES = 10_000  # most bytes of a request body in a record
_LOGGED = "sbert_search.logged"  # key in the scope of a request that was logged


@dataclass(frozen=True, slots=True)
class AccessLog:
    """Writes a line for each request.

    With ``texts``, records have the address and the body of the request, what each query found, and
    errors their messages. All of these can hold texts of queries, filters and documents.
    """

    emit: Callable[[Mapping[str, object]], None]
    texts: bool = False
    worker: int = 0  # number of this worker process; 0: the server has one process

    def write(
        self,
        scope: Scope,
        route: str,
        status: int,
        seconds: float,
        work: Work,
        request_id: str,
        *,
        bug: Exception | None = None,
        body: bytes = b"",
    ) -> None:
        """Write the record of a request; status 499: the client closed the connection."""
        scope[_LOGGED] = True
        client = scope.get("client")
        record: dict[str, object] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": request_id,
            "client": client[0] if client else "",
            "method": scope["method"],
            "route": route,
            "status": status,
            "ms": _ms(seconds),
        }
        if self.worker:
            record["worker"] = self.worker
        if work.texts:
            record |= {
                "texts": work.texts,
                "tokens": work.tokens,
                "truncated": work.truncated,
                "tokenization_ms": _ms(work.tokenization_s),
                "queue_ms": _ms(work.queue_s),
                "inference_ms": _ms(work.inference_s),
            }
        if work.search_s:
            record["search_ms"] = _ms(work.search_s)
        if bug is not None:
            lines = traceback.format_exception(bug) if self.texts else _without_messages(bug)
            record["error"] = "".join(lines)
        if self.texts:
            query = scope["query_string"].decode("ascii", "replace")
            record["address"] = f"{scope['path']}?{query}" if query else scope["path"]
            record["body"] = body[:_MOST_BYTES].decode("utf-8", "replace")
            if work.found:
                record["searches"] = work.found
        with suppress(OSError, ValueError):  # a pipe without a reader; requests go on
            self.emit(record)


class LogOtherRequests:
    """Logs requests that no operation answers: page files, unknown paths, CORS preflights."""

    def __init__(self, app: ASGIApp, log: AccessLog) -> None:
        self._app, self._log = app, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        status, started_s = 499, perf_counter()

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await self._app(scope, receive, observed)
        if scope["type"] == "http" and _LOGGED not in scope:
            # The path of a file of the search page is harmless; any other path may hold texts.
            is_file = scope["method"] != "OPTIONS" and status < 400
            route = scope["path"] if is_file else ""
            seconds, request_id = perf_counter() - started_s, secrets.token_hex(8)
            self._log.write(scope, route, status, seconds, Work(), request_id)


class BodyRecorder:
    """Receives a request, and keeps the start of its body for the log."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.body = b""

    async def __call__(self) -> Message:
        """Receive a message."""
        message = await self._receive()
        if len(self.body) < _MOST_BYTES:
            self.body += message.get("body", b"")[:_MOST_BYTES]
        return message


def _without_messages(bug: BaseException) -> list[str]:
    """Format a traceback with its causes, without messages, since these may quote a request."""
    cause = bug.__cause__ or (None if bug.__suppress_context__ else bug.__context__)
    lines = [] if cause is None else [*_without_messages(cause), "\n"]
    lines += traceback.format_tb(bug.__traceback__)
    return [*lines, f"{type(bug).__qualname__} (--log-texts shows the message)\n"]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
