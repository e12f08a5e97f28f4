"""Check the client and the headers of a request, then read and decode its body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from starlette.types import Receive

from sbert_search.serving.access import Right
from sbert_search.serving.problems import Problem, invalid
from sbert_search.serving.state import Served

T = TypeVar("T")

_PLACE = re.compile(r" - at `\$\.?(.*)`$")  # the field, at the end of a message of msgspec


class HungUp(Exception):  # noqa: N818 (it ends a request, and no client sees it)
    """The client closed the connection before it got its answer."""


def require_admission(
    served: Served, right: Right | Literal["open"], headers: Mapping[bytes, bytes]
) -> None:
    """Refuse a client without the needed token, and web pages of other origins.

    Args:
        served: The state of the server, with its hosts, origins and tokens.
        right: The right that the operation needs; ``open``: none.
        headers: The headers of the request.

    Raises:
        Problem: The header Host or Origin names another server, the token is missing or wrong, or
            the token or the server allows no writing.
    """
    host = headers.get(b"host", b"").decode("latin-1")
    if served.hosts and _name_of(host) not in served.hosts:
        raise Problem(403, "The header Host names another server.", "host")
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin and origin not in served.origins and _host_of(origin) != host:
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


def _host_of(origin: str) -> str | None:
    """Return the host and the port of an origin; None: it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def require_json(headers: Mapping[bytes, bytes]) -> None:
    """Refuse a body that is not declared as JSON.

    A request without a Content-Type is accepted. The type of forms is accepted too, because
    `curl -d` sends it.

    Raises:
        Problem: The Content-Type is another one, or the body is compressed.
    """
    given = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if given not in (b"application/json", b"application/x-www-form-urlencoded"):
        shown = given.decode("latin-1")
        raise Problem(415, f"The body is {shown!r:.100}; send application/json.", "content-type")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Problem(415, "The body is compressed; send it as it is.", "content-encoding")


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """Read the body of a request, of at most ``limit`` bytes.

    Raises:
        Problem: The body is larger than ``limit``.
        HungUp: The client closed the connection.
    """
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
    """Decode a body.

    Raises:
        Problem: The body is not JSON, or a field is unknown, missing or of a wrong type or value.
    """
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise wrong_field(error) from error
    except RecursionError as error:
        raise invalid("", "The body is nested too deeply.") from error
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise invalid("", f"The body is not JSON in UTF-8: {str(error)[:200]}.") from error


def wrong_field(error: msgspec.ValidationError) -> Problem:
    """Return the problem of a field that has a wrong type or value, is unknown or is missing."""
    found = _PLACE.search(str(error))
    where = found[1] if found else ""
    message = _PLACE.sub("", str(error))
    unknown = re.search(r"(?:unknown|required) field `(.*)`", message)
    if unknown:
        where = f"{where}.{unknown[1]}" if where else unknown[1]
    return invalid(where[:200], f"{message[:300]}.")


def _name_of(host: str) -> str:
    """Return the header Host without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
