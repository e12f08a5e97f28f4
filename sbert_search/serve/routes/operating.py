"""Health, metrics and facts about the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from sbert_search.serve.classifier import ServedClassifier
from sbert_search.serve.embedder import ServedEmbedder
from sbert_search.serve.endpoint import Call, Operation, Reply
from sbert_search.serve.model_schemas import EmbeddingKind, InfoResponse, ModelKind, ServedModelInfo
from sbert_search.serve.problems import Problem
from sbert_search.serve.reranker import ServedReranker
from sbert_search.serve.state import Served
from sbert_search.version import __version__

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


_KINDS: Mapping[type, Literal["embedding", "reranker", "classifier"]] = {
    ServedEmbedder: "embedding",
    ServedReranker: "reranker",
    ServedClassifier: "classifier",
}


class Status(Struct, kw_only=True):
    """The server is healthy, or ready."""

    status: Literal["ok"] = "ok"


class Readiness(Status, kw_only=True):
    """The server is ready.

    Attributes:
        refused: Why the newest commit of an index is not served, by the name of the index. An
            earlier commit of it is served.
    """

    refused: dict[str, str] = {}


async def health(served: Served, call: Call[None]) -> Reply:
    """Say that the process answers."""
    return Reply(Status())


async def ready(served: Served, call: Call[None]) -> Reply:
    """Say whether the server should get requests."""
    if why := served.why_not_ready():
        raise Problem(503, why)
    errors = {name: one.reload_error for name, one in served.indexes.items()}
    return Reply(Readiness(refused={name: error for name, error in errors.items() if error}))


async def metrics(served: Served, call: Call[None]) -> Reply:
    """Return the metrics of the server, for Prometheus."""
    return Reply(served.metrics.text().encode(), media_type=_METRICS_TYPE)


async def info(served: Served, call: Call[None]) -> Reply:
    """Describe the server and its models."""
    models = [
        ServedModelInfo(
            name=one.name,
            kind=_KINDS[type(one)],
            dim=one.identity.dim,
            max_input_length=one.identity.max_len,
            engine=one.identity.engine,
            precision=one.identity.precision,
            weights_sha256=one.identity.weights_sha256,
        )
        for one in served.models
    ]
    first = served.first_embedder
    kind = None
    if first is not None:
        kind = ModelKind(embedding=EmbeddingKind(pooling=first.identity.pooling))
    limits = served.limits
    return Reply(
        InfoResponse(
            model_id=models[0].name if models else "",
            model_sha=models[0].weights_sha256 if models else None,
            model_dtype=models[0].precision if models else "",
            model_type=kind,
            max_concurrent_requests=limits.requests,
            max_input_length=models[0].max_input_length if models else 0,
            max_batch_tokens=0 if first is None else first.batch_tokens,
            max_batch_requests=None,
            max_client_batch_size=limits.items,
            auto_truncate=True,
            tokenization_workers=2,
            version=__version__,
            models=models,
        )
    )


OPERATIONS: tuple[Operation[None], ...] = (
    Operation("GET", "/health", health, Status, right="open"),
    Operation("GET", "/ready", ready, Readiness, right="open"),
    Operation("GET", "/metrics", metrics, str, media_type=_METRICS_TYPE),
    Operation("GET", "/info", info, InfoResponse, style="tei"),
)
