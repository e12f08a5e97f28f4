"""Read HTTP requests and answer them by functions: access, limits, errors, log and metrics."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from time import perf_counter
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.types import Receive, Scope, Send

from sbert_search.serve.access import Right
from sbert_search.serve.access_log import AccessLog, BodyRecorder
from sbert_search.serve.problems import (
    Problem,
    Style,
    closing_problem,
    kinds_of,
    overloaded_problem,
    problem_of,
)
from sbert_search.serve.queue import Work
from sbert_search.serve.state import Served

T = TypeVar("T")

_PLACE = re.compile(r" - at `\$\.?(.*)`$")  # the field, at the end of a message of msgspec


class HungUp(Exception):  # noqa: N818 (it ends a request, and no client sees it)
    """The client closed the connection before it got its answer."""


def require_admission(
    served: Served, right: Right | Literal["open"], headers: Mapping[bytes, bytes]
) -> None:
    """Refuse a client without the needed token, and web pages of other origins."""
    host = headers.get(b"host", b"").decode("latin-1")
    if served.hosts and not (_name_of(host) in served.hosts or _is_of_page(host, served.origins)):
        raise Problem(
            403,
            "The server answers to the names of its own machine only, such as localhost, since "
            "without tokens a web page could reach it by another one. Behind a proxy, start it "
            "with --cors-origin and the address of the page, such as https://example.org, or with "
            "--token-file.",
            "host",
        )
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin and origin not in served.origins and _host_of(origin) != host:
        raise Problem(403, "Web pages of other origins are not admitted.", "origin")
    if right == "write" and not served.writable:
        raise Problem(403, "The server only reads; start it with --writable to change an index.")
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
    if right == "write" and given != "write":
        raise Problem(403, "This token may only read.")


def _is_of_page(host: str, origins: Sequence[str]) -> bool:
    """Whether a proxy may pass on this header for pages of one of the origins.

    The port counts: a page at http://NAME:8080 whose NAME someone has made an address of this
    machine is no page of https://NAME.
    """
    return host.lower() in map(_host_of, origins)


def _host_of(origin: str) -> str | None:
    """Return the host and the port of an origin; None: it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def require_json(headers: Mapping[bytes, bytes]) -> None:
    """Refuse a body that is declared as something other than JSON, or as compressed."""
    given = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    # `curl -d` sends the type of forms.
    if given not in (b"application/json", b"application/x-www-form-urlencoded"):
        shown = given.decode("latin-1")
        raise Problem(415, f"The body is {shown!r:.100}; send application/json.", "content-type")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Problem(415, "The body is compressed; send it as it is.", "content-encoding")


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """Read the body of a request, of at most ``limit`` bytes; `HungUp`: the client is gone."""
    message = f"The body may have at most {limit:,} bytes; send several requests."
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise Problem(413, message, closes=True)
    parts, size = [], 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise HungUp
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise Problem(413, message, closes=True)
        if not event.get("more_body", False):
            return b"".join(parts)


def decode(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Decode a body, or raise a `Problem` that names the wrong field."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise wrong_field(error, decoder.type) from error
    except RecursionError as error:
        raise Problem(400, "The body is nested too deeply.") from error
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise Problem(400, f"The body is not JSON in UTF-8: {str(error)[:200]}.") from error


def wrong_field(error: msgspec.ValidationError, kind: object) -> Problem:
    """Return the problem of a field that has a wrong type or value, is unknown or is missing.

    ``kind`` is the type of the body; its choices are named if the value is none of them.
    """
    found = _PLACE.search(str(error))
    where = found[1] if found else ""
    message = _PLACE.sub("", str(error))
    unknown = re.search(r"(?:unknown|required) field `(.*)`", message)
    if unknown:
        where = f"{where}.{unknown[1]}" if where else unknown[1]
    if message.startswith("Invalid enum value"):
        fields = re.sub(r"\[[^]]*\]", "", where).split(".")
        known = _choices(msgspec.inspect.type_info(kind), fields)
        message += f"; known: {', '.join(dict.fromkeys(known))}"
    return Problem(400, f"{message[:600]}.", where[:200])


def _choices(kind: msgspec.inspect.Type, path: Sequence[str]) -> Iterator[str]:
    """Yield the values of the `Literal` at a path of fields in a type."""
    if isinstance(kind, msgspec.inspect.LiteralType) and not path:
        yield from map(str, kind.values)
    if isinstance(kind, msgspec.inspect.Metadata):
        yield from _choices(kind.type, path)
    if isinstance(kind, msgspec.inspect.ListType):
        yield from _choices(kind.item_type, path)
    for each in kind.types if isinstance(kind, msgspec.inspect.UnionType) else ():
        yield from _choices(each, path)
    for part in kind.fields if isinstance(kind, msgspec.inspect.StructType) else ():
        if path and part.encode_name == path[0]:
            yield from _choices(part.type, path[1:])


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


Q = TypeVar("Q")

JSON = "application/json"


@dataclass(slots=True)
class Call(Generic[Q]):
    """A request that is being answered."""

    body: Q
    path: Mapping[str, str]  # parts of the path by name
    query: Mapping[str, str]  # query parameters by name
    work: Work  # the cost of the request so far
    scope: Scope


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    value: object  # bytes, sent unchanged, or an object to encode as JSON
    status: int = 200
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation(Generic[Q]):
    """An operation of the server: one method of one path."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str  # with the names of its variable parts in braces
    # Its docstring, one sentence, is the summary in the OpenAPI document.
    answer: Callable[[Served, Call[Q]], Awaitable[Reply]]
    response: object = None  # type of the answer's body, for the OpenAPI document
    request: type[Q] | None = None  # type of the body; None: there is none
    _: KW_ONLY
    # Descriptions of the query parameters by name; a request with others is refused.
    parameters: Mapping[str, str] = field(default_factory=dict)
    right: Right | Literal["open"] = "read"  # that a client needs; ``open``: none
    style: Style = "openai"  # of the bodies of errors
    # Another style for requests that have a field, which tells whose client asks.
    styles: Mapping[str, Style] = field(default_factory=dict)
    problems: tuple[int, ...] = ()  # statuses of further errors
    versioned: bool = True  # whether it also exists under ``/v1``
    media_type: str = JSON  # of the answer, for the OpenAPI document
    may_be_empty: bool = False  # whether some answers have the status 202 and no body

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the operation."""
        return (self.path, f"/v1{self.path}") if self.versioned else (self.path,)

    @property
    def statuses(self) -> tuple[int, ...]:
        """Statuses of the errors that a client may get."""
        statuses = {*self.problems, 400, 403, 500, 503}
        if self.right != "open":
            statuses |= {401, 429}
        if self.right == "write":
            statuses |= {409}
        if self.request is not None:
            statuses |= {404, 408, 413, 415}
        return tuple(sorted(statuses))


AnyOperation: TypeAlias = Operation[Any]
"""An operation with a body of some type."""


class Endpoint(Generic[Q]):
    """An ASGI application for one operation."""

    def __init__(self, operation: Operation[Q], served: Served, log: AccessLog | None) -> None:
        self._operation, self._served, self._log = operation, served, log
        request = operation.request
        self._decoder = None if request is None else msgspec.json.Decoder(request)

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
        recorder = BodyRecorder(receive) if self._log is not None and self._log.texts else None
        served.active += 1
        try:
            reply = await self._answer(scope, recorder or receive, work)
        except HungUp:
            pass
        except asyncio.CancelledError:  # the time that requests get after SIGTERM is over
            problem = closing_problem()
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                bug, problem = error, Problem(500, f"An error of the server, {request_id}.")
            else:
                _forget_frames(error)
        finally:
            served.active -= 1
        if problem is not None:
            reply = _refusal(problem, self._operation)
        seconds = perf_counter() - started_s
        if reply is not None:
            if reply.status >= 400:
                served.metrics.failures.add(labels={"err": kinds_of(reply.status)[0]})
            else:
                served.metrics.successes.add(labels=labels)
            await _send(send, reply, _headers(work, seconds, request_id, served))
            self._observe(work, seconds)
        if self._log is not None:
            status = 499 if reply is None else reply.status
            body = b"" if recorder is None else recorder.body
            path = self._operation.path
            self._log.write(scope, path, status, seconds, work, request_id, bug=bug, body=body)

    async def _answer(self, scope: Scope, receive: Receive, work: Work) -> Reply:
        operation, served = self._operation, self._served
        headers = dict(scope["headers"])
        require_admission(served, operation.right, headers)
        if operation.right != "open" and served.active > served.limits.requests:
            raise overloaded_problem(1.0)
        try:
            text = scope["query_string"].decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
        except (UnicodeDecodeError, ValueError) as error:
            raise Problem(400, "The part of the address after ? cannot be read.") from error
        query = dict(pairs)
        for name, n in Counter(name for name, _ in pairs).items():
            if name not in operation.parameters:
                known = ", ".join(operation.parameters) or "none"
                message = f"There is no such parameter of the address; known: {known}."
                raise Problem(400, message, name[:100])
            if n > 1:
                raise Problem(400, "The parameter occurs twice in the address; send it once.", name)
        path = scope.get("path_params", {})
        if self._decoder is None:
            call = Call(cast(Q, None), path, query, work, scope)
            return await _unless_hung_up(operation.answer(served, call), receive)
        require_json(headers)
        raw = await read_body(receive, headers, served.limits.body_bytes)
        try:
            call = Call(decode(self._decoder, raw), path, query, work, scope)
            return await _unless_hung_up(operation.answer(served, call), receive)
        except Exception as error:
            problem = problem_of(error) if operation.styles else None
            if problem is None:
                raise
            problem.style = _style_of(raw, operation.styles)
            raise problem from (None if problem is error else error)

    def _observe(self, work: Work, seconds: float) -> None:
        metrics = self._served.metrics
        metrics.durations.observe(seconds, {"method": self._operation.path})
        if work.texts:
            metrics.tokenization.observe(work.tokenization_s)
            metrics.waiting.observe(work.queue_s)
            metrics.inference.observe(work.inference_s)


def _refusal(problem: Problem, operation: AnyOperation) -> Reply:
    """Return the answer to a request that is refused, with status and body as its client has them.

    Cohere, Jina and vLLM answer 400 to texts that are too many or too long, and TEI 413.
    """
    style = problem.style or operation.style
    shared = style == "openai" and operation.styles  # such as /rerank
    if problem.status == 413 and problem.param and (style == "cohere" or shared):
        problem.status = 400
    headers = dict(problem.headers)
    if problem.closes:
        headers["connection"] = "close"
    return Reply(problem.body(style), problem.status, headers=headers)


def _style_of(raw: bytes, styles: Mapping[str, Style]) -> Style | None:
    """Return the style of the first field that a body has; None: it has none, or is no object."""
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return None
    return next((style for name, style in styles.items() if name in fields), None)


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its causes.

    Their frames hold the request, the connection and the error itself. In this cycle, they would
    stay in memory until the garbage collector finds them.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


async def _unless_hung_up(answer: Awaitable[T], receive: Receive) -> T:
    """Await an answer; if the client closes the connection, cancel it and raise `HungUp`."""
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
        work.exception()  # retrieves the error, so that asyncio does not report it
    raise HungUp


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, reply: Reply, headers: list[tuple[bytes, bytes]]) -> None:
    body = reply.value if isinstance(reply.value, bytes) else msgspec.json.encode(reply.value)
    media_type = reply.media_type.encode()
    headers += [(b"content-type", media_type), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _headers(
    work: Work, seconds: float, request_id: str, served: Served
) -> list[tuple[bytes, bytes]]:
    """Return the headers of any operation, under the names of text-embeddings-inference if any."""
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
    return headers


def _ms(seconds: float) -> bytes:
    return f"{seconds * 1e3:.1f}".encode()
