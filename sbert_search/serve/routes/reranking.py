"""Reranking, in the forms of Cohere and of text-embeddings-inference."""

from __future__ import annotations

import secrets

import numpy as np

from sbert_search.serve.endpoint import Call, Operation, Reply
from sbert_search.serve.model_schemas import (
    ApiVersion,
    BilledUnits,
    RerankDocument,
    RerankMeta,
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
        texts = [one if isinstance(one, str) else one.text for one in body.documents or ()]
    served.require_items(len(texts), param)
    if not body.query.strip():
        raise Problem(400, "The query is empty.", "query")
    if len(body.query) > served.limits.query_chars:
        raise Problem(
            400, f"The query has more than {served.limits.query_chars:,} characters.", "query"
        )
    model = served.reranker(body.model)
    if body.raw_scores:
        applied = "The activation of the model is always applied; leave raw_scores out."
        raise Problem(400, applied, "raw_scores")
    read = texts
    if body.max_tokens_per_doc is not None:
        read = await model.shortened(texts, body.max_tokens_per_doc)
    cut = [short != text for short, text in zip(read, texts, strict=True)]
    cuts = body.truncate is not False
    if any(cut) and not cuts:
        more = f"{sum(cut):,} texts have more than {body.max_tokens_per_doc:,} tokens."
        raise Problem(400, more, param)
    scores = await model.score(
        [(body.query, text) for text in read], call.work, cut, cuts=cuts, param=param
    )
    # Equal scores keep the order of the request.
    order: list[int] = np.argsort(-scores, kind="stable")[: body.top_n].tolist()
    if body.texts is not None:
        ranks = [
            TeiRank(index=i, score=float(scores[i]), text=texts[i] if body.return_text else None)
            for i in order
        ]
        return Reply(ranks)
    results = [
        RerankResult(
            index=i,
            relevance_score=float(scores[i]),
            document=RerankDocument(text=texts[i]) if body.return_documents else None,
        )
        for i in order
    ]
    meta = RerankMeta(api_version=ApiVersion(), billed_units=BilledUnits())
    return Reply(
        RerankResponse(
            id=secrets.token_hex(8),
            model=model.name,
            results=results,
            usage=usage_of(call.work),
            meta=meta,
        )
    )


_RESPONSE = RerankResponse | list[TeiRank]
OPERATIONS: tuple[Operation[RerankRequest], ...] = (
    Operation("POST", "/rerank", rerank, _RESPONSE, RerankRequest),
    Operation("POST", "/v2/rerank", rerank, _RESPONSE, RerankRequest, versioned=False),
)
