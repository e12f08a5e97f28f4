"""What users pass to open a model and to encode with it: the types that public signatures share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, Union

from sbert_search.embedding.protocol import TextEmbedder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sbert_search.embedding.engine_protocol import EngineName
    from sbert_search.models.bi_encoder import BiEncoder
    from sbert_search.runtime.device import Precision

TorchModel: TypeAlias = Union[str, Path, "SentenceTransformer", "BiEncoder"]
"""What `Embedder` opens: a model's folder, its name on the hub, or a model in memory."""

ModelLike: TypeAlias = TorchModel | TextEmbedder
"""What an index opens: a `TorchModel`, or an embedder."""


class EmbedderOptions(TypedDict, total=False):
    """How a model that is given by name or folder is opened; see `Embedder`."""

    device: str
    engine: EngineName
    precision: Precision
    truncate_dim: int | None
    prompts: Mapping[str, str] | None
    default_prompt_name: str | None
    batch_tokens: int | Literal["auto"] | None


class MatchingOptions(EmbedderOptions, total=False):
    """How the model of an index is opened; see `Index.matching_embedder`."""

    quick: bool


class CheckedOptions(MatchingOptions, total=False):
    """How the model of an index is opened and compared with it; see `Index.matching_embedder`."""

    allow_inexact: bool


class EncodeOptions(TypedDict, total=False):
    """How texts are encoded; see `Embedder.encode`."""

    prompt_name: str | None
    prompt: str | None
    batch_size: int | None
    show_progress_bar: bool
    normalize_embeddings: bool
    truncate_dim: int | None
