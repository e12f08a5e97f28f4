"""Types of arguments: models, options for opening a model, and options for encoding texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Required, TypeAlias, TypedDict, Union, cast

from sbert_search.config import is_integer
from sbert_search.errors import ConfigError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sbert_search.base.options import EngineName, Precision
    from sbert_search.embed.protocol import TextEmbedder
    from sbert_search.embed.vectors import VectorPrecision
    from sbert_search.models.bi_encoder import BiEncoder

TorchModel: TypeAlias = Union[str, Path, "SentenceTransformer", "BiEncoder"]
"""A model for `Embedder`: a folder, a name on the Hugging Face hub, or a model in memory."""

ModelLike: TypeAlias = Union[TorchModel, "TextEmbedder"]
"""A model for an index: a `TorchModel` or an embedder."""


CalibrationTexts: TypeAlias = str | Path | Sequence[str] | None
"""Texts that calibrate a model for int8: a list, or a UTF-8 file with a text in each line.

None: the texts that this package contains.
"""

OnTruncate = Literal["warn", "error", "chunk"]


class ModelOptions(TypedDict, total=False):
    """Options for opening an embedder or a reranker by its name or folder; see `Embedder`."""

    device: str
    engine: EngineName
    precision: Precision
    calibrate: CalibrationTexts


class EmbedderOptions(ModelOptions, total=False):
    """Options for opening an embedder by its name or folder; see `Embedder`."""

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


class _EncodeOptions(TypedDict, total=False):
    prompt_name: str | None
    prompt: str | None
    batch_size: int | None
    show_progress_bar: bool | None
    normalize_embeddings: bool
    truncate_dim: int | None


class EncodeOptions(_EncodeOptions, total=False):
    """Options of encoding to float32; see `Embedder.encode`."""

    precision: Literal["float32"]
    convert_to_numpy: Literal[True]
    convert_to_tensor: Literal[False]


class SignedOptions(_EncodeOptions, total=False):
    """Options of encoding to signed integers."""

    precision: Required[Literal["int8", "binary"]]
    convert_to_numpy: Literal[True]
    convert_to_tensor: Literal[False]


class UnsignedOptions(_EncodeOptions, total=False):
    """Options of encoding to unsigned integers."""

    precision: Required[Literal["uint8", "ubinary"]]
    convert_to_numpy: Literal[True]
    convert_to_tensor: Literal[False]


class TensorOptions(_EncodeOptions, total=False):
    """Options of encoding to one tensor."""

    precision: VectorPrecision
    convert_to_numpy: bool
    convert_to_tensor: Required[Literal[True]]


class TensorListOptions(_EncodeOptions, total=False):
    """Options of encoding to a list of tensors."""

    precision: VectorPrecision
    convert_to_numpy: Required[Literal[False]]
    convert_to_tensor: Literal[False]


class AnyEncodeOptions(_EncodeOptions, total=False):
    """Options of encoding, each with all values that are allowed."""

    precision: VectorPrecision
    convert_to_numpy: bool
    convert_to_tensor: bool


def reranker_options(options: ModelOptions) -> ModelOptions:
    """Return the options of a reranker beside an embedder; onnx cannot run rerankers."""
    kept = {n: value for n, value in options.items() if n in ModelOptions.__annotations__}
    if kept.get("engine") == "onnx":
        del kept["engine"]
    return cast(ModelOptions, kept)


def check_batch_tokens(batch_tokens: int | Literal["auto"] | None) -> None:
    """Refuse a maximum number of tokens that is not None, "auto" or an integer of at least 1."""
    if batch_tokens is not None and batch_tokens != "auto":
        check_integer("batch_tokens", batch_tokens)


def check_integer(name: str, value: object) -> None:
    """Refuse a value, of the option ``name``, that is not an integer of at least 1."""
    if not is_integer(value):
        raise ConfigError(f"{name} is {value!r}; pass an integer.")
    if value < 1:
        raise ConfigError(f"{name} is {value}; it must be at least 1.")


def check_calibrate(precision: str, texts: CalibrationTexts) -> None:
    """Refuse calibration texts if the precision needs no calibration."""
    if texts is not None and precision not in ("int8", "fastest"):
        raise ConfigError(
            f"calibrate is given, but precision is {precision}, which needs no calibration; leave "
            "it out, or choose precision int8."
        )
