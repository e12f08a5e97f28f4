"""Requests and responses of embeddings and reranking, as msgspec structs.

Embeddings have the forms of OpenAI, of text-embeddings-inference and of Hugging Face's client;
reranking has the form of Cohere, Jina and vLLM, and that of text-embeddings-inference.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from sbert_search.serve.search_schemas import Count, Usage


class EmbeddingsRequest(Struct, kw_only=True):
    """Texts to embed.

    Attributes:
        input: A text, texts, token ids of a text, or token ids of several texts. Token ids are
            those of the model, special tokens included, as ``/tokenize`` returns them.
        model: Name of a model of this server; any other name means the first one.
        encoding_format: Vectors as lists of numbers, or as base64 of little-endian float32.
        dimensions: Number of leading dimensions to keep. If the model's vectors have norm 1, the
            shortened vectors are scaled to norm 1 again.
        user: Ignored.
        input_type: Whether the texts are queries or documents, for models with a prompt for each.
        prompt_name: Name of the model's prompt to put before each text.
    """

    input: str | list[str | int | list[int]]
    model: str = ""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    user: str | None = None
    input_type: Literal["query", "document"] | None = None
    prompt_name: str | None = None


class Embedding(Struct, kw_only=True):
    """The vector of a text.

    Attributes:
        object: Always "embedding".
        index: Number of the text in the request.
        embedding: The vector.
        truncated: Whether the text was cut.
    """

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    truncated: bool = False


class EmbeddingsResponse(Struct, kw_only=True):
    """Vectors of texts, in the order of the request."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class ModelCard(Struct, kw_only=True):
    """A model of the server."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(Struct, kw_only=True):
    """The models of the server."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class EmbedRequest(Struct, kw_only=True):
    """Texts to embed.

    Attributes:
        inputs: A text, texts, or token ids as for ``/embeddings``.
        normalize: Whether vectors are scaled to norm 1; None: yes.
        truncate: False: a text that is too long is an error and not cut.
        truncation_direction: Only "right" is allowed: the end of a text is cut.
        prompt_name: Name of the model's prompt to put before each text.
        dimensions: Number of leading dimensions to keep.
    """

    inputs: str | list[str | int | list[int]]
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["right", "Right"] | None = None
    prompt_name: str | None = None
    dimensions: Count | None = None


class SentencePair(Struct, kw_only=True):
    """A sentence, and others to compare with it."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(Struct, kw_only=True):
    """Settings of a comparison."""

    truncate: bool | None = None
    truncation_direction: Literal["right", "Right"] | None = None
    prompt_name: str | None = None


class SimilarityRequest(Struct, kw_only=True):
    """Sentences to compare by the model's similarity function."""

    inputs: SentencePair
    parameters: SimilarityParameters | None = None


class TokenizeRequest(Struct, kw_only=True):
    """Texts to turn into token ids.

    Attributes:
        inputs: A text or texts.
        add_special_tokens: Whether the model's special tokens are added; None: yes.
        prompt_name: Name of the model's prompt to put before each text.
    """

    inputs: str | list[str]
    add_special_tokens: bool | None = None
    prompt_name: str | None = None


class Token(Struct, kw_only=True):
    """A token and its character offsets in the text with its prompt; special tokens have none."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class EmbeddingKind(Struct, kw_only=True):
    """How the model makes a vector of a text's tokens."""

    pooling: str


class ModelKind(Struct, kw_only=True):
    """The kind of the model."""

    embedding: EmbeddingKind


class ServedModelInfo(Struct, kw_only=True):
    """A model of the server."""

    name: str
    kind: Literal["embedding", "reranker"]
    dim: int
    max_input_length: int
    engine: str
    precision: str
    weights_sha256: str


class InfoResponse(Struct, kw_only=True):
    """What the server is, with the names of text-embeddings-inference."""

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_type: ModelKind | None
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    models: list[ServedModelInfo]


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
