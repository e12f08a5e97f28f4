"""Limits of a server: what a request may hold, how long it may take, and what may wait."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sbert_search.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerLimits:
    """Limits of a server.

    Attributes:
        body_bytes: Largest body of a request.
        items: Most texts of a request: inputs, documents, queries or ids.
        request_tokens: Most tokens of a request, after truncation of each text.
        queue_tokens: Most tokens of all requests that wait for a model; further requests get 429.
        requests: Most requests that are answered at the same time; further requests get 429.
        connections: Most open connections; further ones are closed at once.
        k: Largest ``offset + k`` of a search; with ``group_by``, times ``group_size``.
        rerank_depth: Most documents of a search that the reranker scores.
        filter_chars: Longest filter (``where``), in characters.
        query_chars: Longest query, in characters.
        header_s: Seconds from the first byte of a request, or from the start of a connection, until
            its headers must be complete.
        body_s: Seconds from the end of the headers until the body must be complete. A client that
            does not read its answer for as long is disconnected.
        keep_alive_s: Seconds after which a connection without a request is closed.
        drain_s: Seconds that requests get to finish after SIGTERM.
        window_s: Most seconds that a batch waits for requests whose texts are being tokenised.

    Raises:
        ConfigError: A limit is not above 0.
    """

    body_bytes: int = 8 << 20
    items: int = 2048
    request_tokens: int = 1 << 19
    queue_tokens: int = 1 << 20
    requests: int = 1024
    connections: int = 4096
    k: int = 1000
    rerank_depth: int = 1000
    filter_chars: int = 10_000
    query_chars: int = 100_000
    header_s: float = 10.0
    body_s: float = 30.0
    keep_alive_s: float = 30.0
    drain_s: float = 25.0
    window_s: float = 0.004

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ConfigError(
                    f"{field.name} is {getattr(self, field.name)}; it must be above 0."
                )
