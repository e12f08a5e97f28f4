"""From an HTTP request to a function and back: access, limits, decoding, errors, log, metrics."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.types import Message, Receive, Scope, Send

from sbert_search.serving.access import Right
from sbert_search.serving.access_log import AccessLog
from sbert_search.serving.models.work import Work
from sbert_search.serving.problems import Problem, invalid, overloaded, problem_of
from sbert_search.serving.state import Served

Q = TypeVar("Q")
T = TypeVar("T")

JSON = "application/json"
_PLACE = re.compile(r" - at `\$\.?(.*)`$")


@dataclass(slots=True)
class Call(Generic[Q]):
    """A request that is being answered.

    Attributes:
        body: The decoded body.
        path: Parts of the path by name.
        query: Parameters after the question mark.
        work: What the request has cost so far.
    """

    body: Q
    path: Mapping[str, str]
    query: Mapping[str, str]
    work: Work


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer.

    Attributes:
        value: A msgspec struct or a list; or bytes or text, which are sent as they are.
        status: HTTP status.
        media_type: Type of the answer.
        headers: Further headers.
    """

    value: object
    status: int = 200
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[Q]):
    """What one method of one path does.

    Attributes:
        method: HTTP method.
        path: Path, with parts in braces.
        summary: One sentence for the OpenAPI document.
        answer: Function that answers.
        request: Type of the body; None: there is none.
        response: Type of the answer.
        parameters: Parameters of the query, with their descriptions.
        right: What a client must be allowed; ``open``: nothing.
        style: Form of errors.
        problems: Further statuses that the operation answers with.
        versioned: Whether the operation also exists under ``/v1``.
        media_type: Type of the answer.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    summary: str
    answer: Callable[[Served, Call[Q]], Awaitable[Reply]]
    request: type[Q] | None = None
    response: object = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    right: Right | Literal["open"] = "read"
    style: Literal["openai", "tei"] = "openai"
    problems: tuple[int, ...] = ()
    versioned: bool = True
    media_type: str = JSON

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the operation."""
        return (self.path, f"/v1{self.path}") if self.versioned else (self.path,)

    @property
    def statuses(self) -> tuple[int, ...]:
        """Statuses of the errors that a client may get."""
        statuses = {*self.problems, 400, 500}
        if self.right != "open":
            statuses |= {401, 403, 429}
        if self.request is not None:
            statuses |= {408, 413, 415}
        return tuple(sorted(statuses))


AnyOperation: TypeAlias = Operation[Any]
"""An operation with a body of some type."""


class Endpoint(Generic[Q]):
    """An ASGI application for one operation.

    Args:
        operation: The operation.
        served: What the server serves.
        log: Gets a line for each request; None: there is no log.
    """

    def __init__(self, operation: Operation[Q], served: Served, log: AccessLog | None) -> None:
        self._operation, self._served, self._log = operation, served, log
        self._decoder = (
            None if operation.request is None else msgspec.json.Decoder(operation.request)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        started_s = perf_counter()
        served, work = self._served, Work()
        labels = {"method": self._operation.path}
        served.metrics.requests.add(labels=labels)
        request_id = secrets.token_hex(8)
        reply: Reply | None = None
        problem: Problem | None = None
        bug: Exception | None = None
        served.active += 1
        try:
            reply = await self._answered(scope, receive, work)
        except _HungUp:
            pass
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                bug, problem = error, Problem(500, f"An error of the server, {request_id}.")
        finally:
            served.active -= 1
        if problem is not None:
            served.metrics.failures.add(labels={"err": problem.kind})
            value = problem.body(as_tei=self._operation.style == "tei")
            headers = dict(problem.headers)
            if problem.closes:
                headers["connection"] = "close"
            reply = Reply(value, problem.status, headers=headers)
        elif reply is not None:
            served.metrics.successes.add(labels=labels)
        seconds = perf_counter() - started_s
        if reply is not None:
            await _send(send, reply, _headers(work, seconds, request_id, served, scope))
            self._observe(work, seconds)
        if self._log is not None:
            status = 499 if reply is None else reply.status
            self._log.write(scope, self._operation.path, status, seconds, work, request_id, bug)

    async def _answered(self, scope: Scope, receive: Receive, work: Work) -> Reply:
        operation, served = self._operation, self._served
        headers = dict(scope["headers"])
        require_admission(served, operation.right, headers)
        if operation.right != "open" and served.active > served.limits.requests:
            raise overloaded(1.0)
        try:
            pairs = parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True)
        except (UnicodeDecodeError, ValueError) as error:
            raise invalid("", "The part of the address after ? cannot be read.") from error
        query = dict(pairs)
        for name in query.keys() - operation.parameters.keys():
            raise invalid(name[:100], "There is no such parameter of the address.")
        body: Q | None = None
        if self._decoder is not None:
            require_json(headers)
            raw = await read_body(receive, headers, served.limits.body_bytes)
            body = decode(self._decoder, raw)
        call: Call[Q] = Call(cast(Q, body), scope.get("path_params", {}), query, work)
        answer = operation.answer(served, call)
        if self._decoder is None:
            return await answer
        return await _unless_hung_up(answer, receive)

    def _observe(self, work: Work, seconds: float) -> None:
        metrics = self._served.metrics
        metrics.durations.observe(seconds, {"method": self._operation.path})
        if work.texts:
            metrics.tokenization.observe(work.tokenization_s)
            metrics.waiting.observe(work.queue_s)
            metrics.inference.observe(work.inference_s)


def require_admission(
    served: Served, right: Right | Literal["open"], headers: Mapping[bytes, bytes]
) -> None:
    """Refuse a client without the right token, and web pages of other origins.

    Raises:
        Problem: The client may not do this.
    """
    host = headers.get(b"host", b"").decode("latin-1")
    if served.hosts and _name_of(host) not in served.hosts:
        raise Problem(403, "The header Host names another server.", "host")
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin and origin not in served.origins and urlsplit(origin).netloc != host:
        raise Problem(403, "Web pages of other origins are not admitted.", "origin")
    if right == "open" or not (served.tokens or right == "write"):
        return
    given = served.tokens.right_of(headers.get(b"authorization"))
    if given is None:
        raise Problem(
            401,
            "No token, or a wrong one; send the header `Authorization: Bearer TOKEN`.",
            "authorization",
            {"www-authenticate": "Bearer"},
        )
    if right == "write" and (given != "write" or not served.writable):
        raise Problem(403, "This token may read only, or the server is not --writable.")


def require_json(headers: Mapping[bytes, bytes]) -> None:
    """Refuse a body of another type; curl without a type is accepted.

    Raises:
        Problem: The body is not JSON.
    """
    given = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if given not in (b"application/json", b"application/x-www-form-urlencoded"):
        shown = given.decode("latin-1")
        raise Problem(415, f"The body is {shown!r:.100}; send application/json.", "content-type")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Problem(415, "The body is compressed; send it as it is.", "content-encoding")


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """Read the body of a request, up to a limit.

    Raises:
        Problem: The body is larger.
        _HungUp: The client hung up.
    """
    message = f"The body may have {limit:,} bytes; send several requests."
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise Problem(413, message, closes=True)
    parts, size = [], 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _HungUp
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise Problem(413, message, closes=True)
        if not event.get("more_body", False):
            return b"".join(parts)


def decode(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Decode a body.

    Raises:
        Problem: It is not JSON, or a field has a wrong type or value.
    """
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        found = _PLACE.search(str(error))
        where = found[1] if found else ""
        message = _PLACE.sub("", str(error))
        unknown = re.search(r"(?:unknown|required) field `(.*)`", message)
        if unknown:
            where = f"{where}.{unknown[1]}" if where else unknown[1]
        raise invalid(where[:200], f"{message[:300]}.") from error
    except RecursionError as error:
        raise invalid("", "The body is nested too deeply.") from error
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise invalid("", f"The body is not JSON in UTF-8: {str(error)[:200]}.") from error


class _HungUp(Exception):  # noqa: N818
    """The client closed the connection before it had its answer."""


async def _unless_hung_up(answer: Awaitable[T], receive: Receive) -> T:
    """Await an answer; cancel it if the client closes the connection.

    Raises:
        _HungUp: The client closed it.
    """
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        work.cancel()
        raise
    finally:
        gone.cancel()
    if work.done():
        return work.result()
    work.cancel()
    await asyncio.wait((work,))
    if not work.cancelled():
        work.exception()  # it is seen here, so that asyncio does not report it
    raise _HungUp


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, reply: Reply, headers: list[tuple[bytes, bytes]]) -> None:
    value = reply.value
    if isinstance(value, str):
        body = value.encode()
    else:
        body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    media_type = reply.media_type.encode()
    headers += [(b"content-type", media_type), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    start: Message = {
        "type": "http.response.start",
        "status": reply.status,
        "headers": headers,
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _headers(
    work: Work, seconds: float, request_id: str, served: Served, scope: Scope
) -> list[tuple[bytes, bytes]]:
    """Return the headers of every answer; their names are those of TEI where it has them."""
    headers = [
        (b"x-request-id", request_id.encode()),
        (b"x-total-time", _ms(seconds)),
        (b"x-content-type-options", b"nosniff"),
    ]
    if served.draining:
        headers.append((b"connection", b"close"))
    if work.texts:
        headers += [
            (b"x-compute-tokens", str(work.tokens).encode()),
            (b"x-truncated-texts", str(work.truncated).encode()),
            (b"x-tokenization-time", _ms(work.tokenization_s)),
            (b"x-queue-time", _ms(work.queue_s)),
            (b"x-inference-time", _ms(work.inference_s)),
        ]
    origin = dict(scope["headers"]).get(b"origin", b"")
    if origin and origin.decode("latin-1") in served.origins:
        headers += [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]
    return headers


def _ms(seconds: float) -> bytes:
    return f"{seconds * 1e3:.1f}".encode()


def _name_of(host: str) -> str:
    """Return the header Host without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
