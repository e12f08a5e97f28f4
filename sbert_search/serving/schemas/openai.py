"""Embeddings in the form of OpenAI."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from sbert_search.serving.schemas.fields import Count, Usage


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
