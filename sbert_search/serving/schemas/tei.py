"""Requests of text-embeddings-inference, except reranking, and of Hugging Face's client."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from sbert_search.serving.schemas.fields import Count


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
