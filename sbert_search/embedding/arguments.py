"""Types that several public signatures share: models, options to open one, options to encode."""

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
"""A model for `Embedder`: a folder, a name on the Hugging Face hub, or a model in memory."""

ModelLike: TypeAlias = TorchModel | TextEmbedder
"""A model for an index: a `TorchModel` or an embedder."""


class EmbedderOptions(TypedDict, total=False):
    """Options for opening a model by its name or folder; see `Embedder`."""

    device: str
    engine: EngineName
    precision: Precision
    truncate_dim: int | None
    prompts: Mapping[str, str] | None
    default_prompt_name: str | None
    batch_tokens: int | Literal["auto"] | None


class MatchingOptions(EmbedderOptions, total=False):
    """Options for opening the model that built an index; see `Index.matching_embedder`."""

    quick: bool


class CheckedOptions(MatchingOptions, total=False):
    """Options for opening a model and comparing it with an index; see `Index.matching_embedder`."""

    allow_inexact: bool


class EncodeOptions(TypedDict, total=False):
    """Options of encoding; see `Embedder.encode`."""

    prompt_name: str | None
    prompt: str | None
    batch_size: int | None
    show_progress_bar: bool
    normalize_embeddings: bool
    truncate_dim: int | None
