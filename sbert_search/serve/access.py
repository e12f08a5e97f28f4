"""What a server admits: tokens of clients, and limits of requests.

The tokens come from a file or the environment, and are compared in constant time. The limits say
what a request may hold, how long it may take, and what may wait.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError
from sbert_search.serve.problems import Problem

VARIABLE = "SBERT_SEARCH_TOKENS"
MIN_CHARS = 16

Right = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class AccessTokens:
    """The tokens of a server; without any, every client may read and nobody may write."""

    rights: Mapping[bytes, Right]  # by the SHA-256 of the token

    def __bool__(self) -> bool:
        return bool(self.rights)

    def right_of(self, authorization: bytes | None) -> Right | None:
        """Return the right that the header ``Authorization: Bearer TOKEN`` gives; None: no right.

        How long this takes does not reveal whether a token matches, or which one.
        """
        scheme, _, token = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            token = b""
        given = hashlib.sha256(token.strip()).digest()
        found: Right | None = None
        for known, right in self.rights.items():
            if hmac.compare_digest(known, given):
                found = right
        return found


def read_tokens(path: Path | None, environment: Mapping[str, str] | None = None) -> AccessTokens:
    """Read the tokens of a file, or else those of the variable ``SBERT_SEARCH_TOKENS``.

    Each line, or each part of a line between commas, has one token: ``TOKEN`` allows reading,
    ``TOKEN write`` writing too. Empty lines and lines that start with # are ignored.
    """
    environment = os.environ if environment is None else environment
    if path is None:
        text, origin = environment.get(VARIABLE, ""), VARIABLE
    else:
        origin = f"--token-file {path}"
        try:
            text = path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{origin} cannot be read: {error}.") from error
    rights: dict[bytes, Right] = {}
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    given = [words for line in lines for part in line.split(",") if (words := part.split())]
    for number, words in enumerate(given, 1):
        right = words[1] if len(words) > 1 else "read"
        if len(words) > 2 or right not in ("read", "write"):
            raise ConfigError(f"{origin}, token {number}: write TOKEN, or TOKEN write.")
        if len(words[0]) < MIN_CHARS:
            raise ConfigError(
                f"{origin}, token {number}: {len(words[0])} characters; a token has at least "
                f"{MIN_CHARS}, such as those of `openssl rand -hex 32`."
            )
        rights[hashlib.sha256(words[0].encode()).digest()] = "write" if right == "write" else "read"
    if not rights and (path is not None or text.strip()):
        raise ConfigError(f"{origin} holds no token; write one token on each line.")
    return AccessTokens(rights)


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, which other machines cannot reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_safe_address(host: str, tokens: AccessTokens, *, without_token: bool) -> None:
    """Refuse an address that other machines can reach, unless there are tokens or it is allowed."""
    if without_token and tokens:
        raise ConfigError("--no-token is given, but there are tokens; leave one of the two out.")
    if not (tokens or without_token or is_loopback(host)):
        raise ConfigError(
            f"--host {host} can be reached by other machines, and no token protects the server. "
            f"Pass --token-file FILE, or set {VARIABLE}; or pass --no-token too if everyone who "
            "reaches this address may search."
        )


_Number = Annotated[int, Bounds(1, 1 << 40)]
_Seconds = Annotated[float, Bounds(0.001)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerLimits:
    """Limits of a server.

    Attributes:
        body_bytes: Largest body of a request, in bytes.
        items: Most texts of a request. These are inputs, documents, queries or ids.
        request_tokens: Most tokens of a request. They are counted after truncation of each text.
        queue_tokens: Most tokens that wait; further requests get 429. Each model has a queue.
        requests: Most requests at the same time; others get 429.
        connections: Most open connections. Further ones are closed at once.
        k: Most hits of a search, including those of earlier pages. With ``group_by``, times
            ``group_size``.
        rerank_depth: Most documents of a search that the reranker scores.
        filter_chars: Most characters of a filter.
        query_chars: Most characters of a query.
        header_s: Seconds from the first byte of a request, or the start of a connection, to the end
            of the headers.
        body_s: Seconds from the end of the headers to that of the body. A client that does not read
            its answer for as long is disconnected.
        keep_alive_s: Seconds after which a connection without a request is closed.
        drain_s: After SIGTERM, time to finish the requests that have begun.
        window_s: Seconds that a batch waits for texts that are being tokenised.
    """

    body_bytes: _Number = 8 << 20
    items: _Number = 2048
    request_tokens: _Number = 1 << 19
    queue_tokens: _Number = 1 << 20
    requests: _Number = 1024
    connections: _Number = 4096
    k: _Number = 1000
    rerank_depth: _Number = 1000
    filter_chars: _Number = 10_000
    query_chars: _Number = 100_000
    header_s: _Seconds = 10.0
    body_s: _Seconds = 30.0
    keep_alive_s: _Seconds = 30.0
    drain_s: Annotated[float, Bounds(1, 3600, "SECONDS")] = 25.0
    window_s: _Seconds = 0.004

    def __post_init__(self) -> None:
        check(self, ConfigError)

    def require_tokens(self, n: int, param: str) -> None:
        """Refuse a request with too many tokens in the texts of a field."""
        if n > self.request_tokens:
            message = f"{n:,} tokens; a request may have {self.request_tokens:,}."
            raise Problem(413, f"{message} Send several requests.", param)
