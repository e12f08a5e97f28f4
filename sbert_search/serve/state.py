"""What a server serves: indexes, models, tokens and limits, with their metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import time

from sbert_search.serve.access import AccessTokens, ServerLimits
from sbert_search.serve.embedder import ServedEmbedder
from sbert_search.serve.indexes import NO_RERANKER, ServedIndex
from sbert_search.serve.metrics import Metrics
from sbert_search.serve.problems import Problem, invalid
from sbert_search.serve.reranker import ServedReranker

RELOAD_S = 1.0  # seconds between two checks for new commits
STALLED_S = 120.0  # seconds; a batch that takes longer makes the server not ready


@dataclass
class Served:
    """Everything that requests use.

    Attributes:
        indexes: The indexes by name; a request that names none gets the first one.
        embedders: The embedding models by name.
        rerankers: The rerankers by name.
        tokens: The tokens of clients.
        limits: Limits of requests.
        metrics: Metrics of the server.
        writable: Whether clients with a writing token may change indexes.
        hosts: Hosts that the header Host may name, without ports; (): all hosts.
        origins: Origins of web pages that may read answers (CORS).
        mcp: Whether the tools of the Model Context Protocol are served.
        draining: Whether the server is shutting down.
        active: Number of requests that are being answered.
        started_at: When this object was made, in seconds since 1970.
    """

    indexes: Mapping[str, ServedIndex]
    embedders: Mapping[str, ServedEmbedder]
    rerankers: Mapping[str, ServedReranker]
    tokens: AccessTokens
    limits: ServerLimits
    metrics: Metrics
    writable: bool = False
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    mcp: bool = False
    draining: bool = False
    active: int = 0
    started_at: float = field(default_factory=time)

    def __post_init__(self) -> None:
        self.metrics.add_gauge(
            "te_queue_size",
            "Tokens that wait for a model.",
            lambda: {(): sum(one.queue.waiting_tokens for one in self.models)},
        )
        self.metrics.add_gauge(
            "sbert_search_requests_active",
            "Requests that are being answered.",
            lambda: {(): self.active},
        )
        self.metrics.add_gauge(
            "sbert_search_documents",
            "Documents of an index.",
            lambda: {(("index", name),): len(one.index) for name, one in self.indexes.items()},
            adds=False,
        )

    @property
    def models(self) -> list[ServedEmbedder | ServedReranker]:
        """All models."""
        return [*self.embedders.values(), *self.rerankers.values()]

    def index(self, name: str) -> ServedIndex:
        """Return the index with a name; "": the first one.

        Raises:
            Problem: There is no such index.
        """
        if not self.indexes:
            raise Problem(404, "The server has no index.", "index")
        if not name:
            return next(iter(self.indexes.values()))
        found = self.indexes.get(name)
        if found is None:
            known = ", ".join(self.indexes)
            message = f"There is no index {name!r:.100}; the server has: {known}."
            raise Problem(404, message, "index")
        return found

    def embedder(self, name: str) -> ServedEmbedder:
        """Return the embedding model with a name; without such a model, the first one.

        Raises:
            Problem: The server has no embedding model.
        """
        if not self.embedders:
            raise Problem(404, "The server has no embedding model.", "model")
        return self.embedders.get(name) or next(iter(self.embedders.values()))

    def reranker(self, name: str) -> ServedReranker:
        """Return the reranker with a name; without such a reranker, the first one.

        Raises:
            Problem: The server has no reranker.
        """
        if not self.rerankers:
            raise Problem(404, NO_RERANKER, "model")
        return self.rerankers.get(name) or next(iter(self.rerankers.values()))

    def require_filter(self, where: str | None) -> None:
        """Refuse a filter that is too long.

        Raises:
            Problem: The filter has more characters than the limit.
        """
        if where is not None and len(where) > self.limits.filter_chars:
            message = f"A filter may have at most {self.limits.filter_chars:,} characters."
            raise Problem(413, message, "where")

    def require_items(self, n: int, param: str) -> None:
        """Refuse a request with no or too many texts.

        Raises:
            Problem: The number of texts is not from 1 to the limit.
        """
        if not n:
            raise invalid(param, "There is nothing in the list.")
        if n > self.limits.items:
            message = f"{n:,} items; a request may have {self.limits.items:,}."
            raise Problem(413, f"{message} Send several requests.", param)

    def why_not_ready(self) -> str:
        """Say why the server is not ready for requests; "": it is ready."""
        if self.draining:
            return "The server is shutting down."
        for one in self.models:
            if not one.queue.is_alive:
                return f"The thread of the model {one.name} has ended."
            if one.queue.busy_s > STALLED_S:
                return f"The model {one.name} has computed one batch for {STALLED_S:g} s."
        return ""


@asynccontextmanager
async def reloading(served: Served) -> AsyncIterator[None]:
    """Check the indexes for new commits; at the end, finish the updates that were accepted.

    Each index has its own task, since a long update of one index must not delay the others.
    """
    tasks = [asyncio.create_task(_reload(index)) for index in served.indexes.values()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for index in served.indexes.values():
            await asyncio.to_thread(index.close)


async def _reload(index: ServedIndex) -> None:
    while True:
        await asyncio.sleep(RELOAD_S)
        await index.reload()
