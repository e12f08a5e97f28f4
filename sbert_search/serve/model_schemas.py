"""Requests and responses of embeddings, reranking and classification, as msgspec structs.

Embeddings have the forms of OpenAI, Cohere, text-embeddings-inference and Hugging Face's client;
reranking has the form of Cohere, Jina and vLLM, and that of text-embeddings-inference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from sbert_search.embed.protocol import Task
from sbert_search.serve.search_schemas import Count, Usage

InputType = Literal[
    "query",
    "document",
    "passage",
    "search_query",
    "search_document",
    "retrieval.query",
    "retrieval.passage",
    "classification",
    "clustering",
    "separation",
    "text-matching",
]
"""What texts are for, in the words of this package, NVIDIA, Cohere and Jina."""

TASKS: Mapping[InputType, Task | None] = {
    "query": "query",
    "document": "document",
    "passage": "document",
    "search_query": "query",
    "search_document": "document",
    "retrieval.query": "query",
    "retrieval.passage": "document",
    "classification": None,
    "clustering": None,
    "separation": None,
    "text-matching": None,
}
"""Which prompt a text gets for each `InputType`; None: the model's default."""

JsonObject: TypeAlias = dict[str, Any]


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
        task: The same, under the name that Jina gives it.
        prompt_name: Name of the model's prompt to put before each text.
    """

    input: str | list[str | int | list[int]]
    model: str = ""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    user: str | None = None
    input_type: InputType | None = None
    task: InputType | None = None
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


class CoherePart(Struct, kw_only=True):
    """A part of an input; only texts are read."""

    type: Literal["text"]
    text: str


class CohereInput(Struct, kw_only=True):
    """An input in the form of Cohere, whose parts make one text."""

    content: list[CoherePart]


class EmbedRequest(Struct, kw_only=True):
    """Texts to embed.

    With ``inputs``, request and response have the form of text-embeddings-inference; with
    ``texts``, that of Cohere.

    Attributes:
        inputs: A text, texts, or token ids as for ``/embeddings``; or objects in the form of
            Cohere, which count as ``texts``.
        texts: The texts, in the form of Cohere.
        model: Name of a model of this server; any other name means the first one.
        normalize: Whether vectors are scaled to norm 1; None: yes, but not for ``texts``.
        truncate: False or NONE: a text that is too long is an error and not cut. START: its start
            is cut.
        truncation_direction: Which end of a text is cut; None: right.
        prompt_name: Name of the model's prompt to put before each text.
        input_type: Whether the texts are queries or documents, for models with a prompt for each.
        dimensions: Number of leading dimensions to keep.
        output_dimension: The same, under the name that Cohere gives it.
        embedding_types: Forms of the vectors for ``texts``; None: numbers.
    """

    inputs: str | list[str | int | list[int] | CohereInput] | None = None
    texts: list[str] | None = None
    model: str = ""
    normalize: bool | None = None
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    truncation_direction: Literal["right", "Right", "left", "Left"] | None = None
    prompt_name: str | None = None
    input_type: InputType | None = None
    dimensions: Count | None = None
    output_dimension: Count | None = None
    embedding_types: list[Literal["float", "base64", "binary", "ubinary"]] | None = None


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
    """Sentences to compare by the model's similarity function.

    Attributes:
        inputs: The sentences.
        parameters: How they are embedded.
        model: As for embeddings.
    """

    inputs: SentencePair
    parameters: SimilarityParameters | None = None
    model: str = ""


class TokenizeRequest(Struct, kw_only=True):
    """Texts to turn into token ids.

    Attributes:
        inputs: A text or texts.
        add_special_tokens: Whether the model's special tokens are added; None: yes.
        prompt_name: Name of the model's prompt to put before each text.
        model: As for embeddings.
    """

    inputs: str | list[str]
    add_special_tokens: bool | None = None
    prompt_name: str | None = None
    model: str = ""


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
    kind: Literal["embedding", "reranker", "classifier"]
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


class PredictRequest(Struct, kw_only=True):
    """Texts to classify.

    Attributes:
        inputs: A text, a pair of texts as ``["a", "b"]``, or several, ``[["a", "b"], ["c", "d"]]``.
        model: Name of a classifier of this server; any other name means the first one.
        raw_scores: Whether scores are logits; None: they are probabilities.
        truncate: False: a text that is too long is an error and not cut.
        truncation_direction: Only "right" is allowed: the end of a text is cut.
    """

    inputs: str | list[str | list[str]]
    model: str = ""
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["right", "Right"] | None = None


class LabelScore(Struct, kw_only=True):
    """The score of a class."""

    score: float
    label: str


class RerankRequest(Struct, kw_only=True):
    """A query and texts to sort by their relevance for it.

    With ``documents``, request and response have the form of Cohere, Jina and vLLM; with ``texts``,
    that of text-embeddings-inference. A document is a text, or an object with the field ``text``.

    Attributes:
        query: The query.
        documents: The documents.
        texts: The texts to sort, in the form of text-embeddings-inference.
        model: Name of a reranker of this server; any other name means the first one.
        top_n: Most results; None: all.
        return_documents: Whether results have the documents.
        max_tokens_per_doc: Most tokens of a document that are read.
        max_chunks_per_doc: Ignored.
        rank_fields: Fields of the documents that are read, each on a line; null: ``text``.
        return_text: Whether results have the texts.
        raw_scores: Whether scores are logits, before the sigmoid that the model may have.
        truncate: False: a text that is too long is an error and not cut.
        truncation_direction: Only "right" is allowed: the end of a text is cut.
    """

    query: str
    documents: list[str | JsonObject] | None = None
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
    document: JsonObject | None = None


class BilledUnits(Struct, kw_only=True, omit_defaults=True):
    """What Cohere would bill: one search, or the tokens of embeddings."""

    search_units: int | None = None
    input_tokens: int | None = None


class ApiVersion(Struct, kw_only=True):
    """The version of the interface."""

    version: str = "2"


class CohereMeta(Struct, kw_only=True):
    """Facts that Cohere's client expects."""

    api_version: ApiVersion
    billed_units: BilledUnits


class CohereEmbeddings(Struct, kw_only=True, omit_defaults=True):
    """Vectors in the forms that the request names."""

    float_: list[list[float]] | None = field(default=None, name="float")
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None
    base64: list[str] | None = None


class CohereEmbedResponse(Struct, kw_only=True):
    """Vectors of texts, in the order of the request."""

    id: str
    response_type: Literal["embeddings_by_type", "embeddings_floats"]
    embeddings: CohereEmbeddings | list[list[float]]
    texts: list[str]
    meta: CohereMeta


class RerankResponse(Struct, kw_only=True):
    """The documents, the most relevant first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: Usage
    meta: CohereMeta


class TeiRank(Struct, kw_only=True, omit_defaults=True):
    """The score of a text."""

    index: int
    score: float
    text: str | None = None
