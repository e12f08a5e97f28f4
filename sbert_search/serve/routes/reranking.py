"""Reranking, in the forms of Cohere and of text-embeddings-inference."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from sbert_search.serve.endpoint import AnyOperation, Call, Operation, Reply
from sbert_search.serve.model_schemas import (
    ApiVersion,
    BilledUnits,
    CohereMeta,
    JsonObject,
    RerankRequest,
    RerankResponse,
    RerankResult,
    TeiRank,
)
from sbert_search.serve.problems import Problem
from sbert_search.serve.routes.embedding import usage_of
from sbert_search.serve.state import Served


async def rerank(served: Served, call: Call[RerankRequest]) -> Reply:
    """Sort texts by their relevance for a query, in the form of Cohere or of TEI."""
    body = call.body
    if (body.documents is None) == (body.texts is None):
        raise Problem(400, "Send either documents or texts.", "documents")
    param = "texts" if body.texts is not None else "documents"
    texts = body.texts
    if texts is None:
        texts = [_text(one, at, body.rank_fields) for at, one in enumerate(body.documents or ())]
    served.require_items(len(texts), param)
    if not body.query.strip():
        raise Problem(400, "The query is empty.", "query")
    if len(body.query) > served.limits.query_chars:
        raise Problem(
            400, f"The query has more than {served.limits.query_chars:,} characters.", "query"
        )
    model = served.reranker(body.model)
    read = texts
    if body.max_tokens_per_doc is not None:
        read = await model.shortened(texts, body.max_tokens_per_doc)
    cut = [short != text for short, text in zip(read, texts, strict=True)]
    cuts = body.truncate is not False
    if any(cut) and not cuts:
        more = f"{sum(cut):,} texts have more than {body.max_tokens_per_doc:,} tokens."
        raise Problem(413, more, param)
    scores = await model.score(
        [(body.query, text) for text in read],
        call.work,
        cut,
        cuts=cuts,
        param=param,
        raw=body.raw_scores is True,
    )
    # Equal scores keep the order of the request.
    order: list[int] = np.argsort(-scores, kind="stable")[: body.top_n].tolist()
    if body.texts is not None:
        ranks = [
            TeiRank(index=i, score=float(scores[i]), text=texts[i] if body.return_text else None)
            for i in order
        ]
        return Reply(ranks)
    assert body.documents is not None
    results = [
        RerankResult(
            index=i,
            relevance_score=float(scores[i]),
            document=_shown(body.documents[i]) if body.return_documents else None,
        )
        for i in order
    ]
    meta = CohereMeta(api_version=ApiVersion(), billed_units=BilledUnits(search_units=1))
    return Reply(
        RerankResponse(
            id=secrets.token_hex(8),
            model=model.name,
            results=results,
            usage=usage_of(call.work),
            meta=meta,
        )
    )


def _text(document: str | JsonObject, at: int, rank_fields: Sequence[str] | None) -> str:
    """Return what the reranker reads of a document."""
    if isinstance(document, str):
        return document
    found = [document[name] for name in rank_fields or ("text",) if name in document]
    if not found or not all(isinstance(one, (str, int, float)) for one in found):
        named = " or ".join(rank_fields or ("text",))
        message = f"The document has no text in {named}; rank_fields names the fields to read."
        raise Problem(400, message, f"documents[{at}]")
    return "\n".join(map(str, found))


def _shown(document: str | JsonObject) -> JsonObject:
    return {"text": document} if isinstance(document, str) else document


_RESPONSE = RerankResponse | list[TeiRank]
ROOT: AnyOperation = Operation(
    "POST", "/", rerank, _RESPONSE, RerankRequest, style="tei", versioned=False
)
OPERATIONS: tuple[Operation[RerankRequest], ...] = (
    Operation("POST", "/rerank", rerank, _RESPONSE, RerankRequest, styles={"texts": "tei"}),
    Operation(
        "POST", "/v2/rerank", rerank, _RESPONSE, RerankRequest, style="cohere", versioned=False
    ),
)
