"""Reranking in the form of Cohere, Jina and vLLM, and in that of text-embeddings-inference."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from sbert_search.serving.schemas.fields import Count, Usage


class RerankDocument(Struct, kw_only=True):
    """A document with its text."""

    text: str


class RerankRequest(Struct, kw_only=True):
    """A query and texts to sort by their relevance for it.

    With ``documents``, request and response have the form of Cohere, Jina and vLLM; with ``texts``,
    that of text-embeddings-inference.

    Attributes:
        query: The query.
        documents: The documents.
        texts: The texts to sort, in the form of text-embeddings-inference.
        model: Name of a reranker of this server; any other name means the first one.
        top_n: Most results; None: all.
        return_documents: Whether results have the documents.
        max_tokens_per_doc: Most tokens of a document that are read.
        max_chunks_per_doc: Ignored.
        rank_fields: Ignored.
        return_text: Whether results have the texts.
        raw_scores: True is refused: the model's own activation, such as a sigmoid, is always
            applied.
        truncate: False: a text that is too long is an error and not cut.
        truncation_direction: Only "right" is allowed: the end of a text is cut.
    """

    query: str
    documents: list[str | RerankDocument] | None = None
    texts: list[str] | None = None
    model: str = ""
    top_n: Count | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Count | None = None
    max_chunks_per_doc: Count | None = None
    rank_fields: list[str] | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["right", "Right"] | None = None


class RerankResult(Struct, kw_only=True, omit_defaults=True):
    """The score of a document."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class BilledUnits(Struct, kw_only=True):
    """What Cohere would bill; always one search."""

    search_units: int = 1


class ApiVersion(Struct, kw_only=True):
    """The version of the interface."""

    version: str = "2"


class RerankMeta(Struct, kw_only=True):
    """Facts that Cohere's client expects."""

    api_version: ApiVersion
    billed_units: BilledUnits


class RerankResponse(Struct, kw_only=True):
    """The documents, the most relevant first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: Usage
    meta: RerankMeta


class TeiRank(Struct, kw_only=True, omit_defaults=True):
    """The score of a text."""

    index: int
    score: float
    text: str | None = None
