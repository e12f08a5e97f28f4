"""Reranking, in the forms of Cohere and of text-embeddings-inference."""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

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
from sbert_search.serve.problems import invalid_problem
from sbert_search.serve.routes.embedding import usage_of
from sbert_search.serve.state import Served


async def rerank(served: Served, call: Call[RerankRequest]) -> Reply:
    """Sort texts by their relevance for a query, in the form of Cohere or of TEI."""
    body = call.body
    if (body.documents is None) == (body.texts is None):
        raise invalid_problem("documents", "Send either documents or texts.")
    param = "texts" if body.texts is not None else "documents"
    texts = body.texts if body.texts is not None else [_text(one) for one in body.documents or ()]
    served.require_items(len(texts), param)
    if not body.query.strip():
        raise invalid_problem("query", "The query is empty.")
    if len(body.query) > served.limits.query_chars:
        raise invalid_problem(
            "query", f"The query has more than {served.limits.query_chars:,} characters."
        )
    model = served.reranker(body.model)
    if body.raw_scores:
        applied = "The activation of the model is always applied; leave raw_scores out."
        raise invalid_problem("raw_scores", applied)
    read = texts
    if body.max_tokens_per_doc is not None:
        read = await model.shortened(texts, body.max_tokens_per_doc)
    cut = [short != text for short, text in zip(read, texts, strict=True)]
    cuts = body.truncate is not False
    if any(cut) and not cuts:
        more = f"{sum(cut):,} texts have more than {body.max_tokens_per_doc:,} tokens."
        raise invalid_problem(param, more)
    scores = await model.score(
        [(body.query, text) for text in read], call.work, cut, cuts=cuts, param=param
    )
    order = _best(scores, body.top_n)
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


def _text(document: str | RerankDocument) -> str:
    return document if isinstance(document, str) else document.text


def _best(scores: NDArray[np.float32], top_n: int | None) -> list[int]:
    """Return the numbers of the best texts; equal scores keep the order of the request."""
    order: list[int] = np.argsort(-scores, kind="stable")[:top_n].tolist()
    return order


def _operation(path: str, *, versioned: bool) -> Operation[RerankRequest]:
    return Operation(
        method="POST",
        path=path,
        answer=rerank,
        request=RerankRequest,
        response=RerankResponse | list[TeiRank],
        problems=(404,),
        versioned=versioned,
    )


OPERATIONS: tuple[Operation[RerankRequest], ...] = (
    _operation("/rerank", versioned=True),
    _operation("/v2/rerank", versioned=False),
)
