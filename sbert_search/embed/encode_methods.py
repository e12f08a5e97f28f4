"""The methods of `Embedder` that turn texts into vectors, named as in ``SentenceTransformer``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack, get_args, overload

import numpy as np
from numpy.typing import NDArray

from sbert_search.config import unknown_name
from sbert_search.embed.arguments import (
    AnyEncodeOptions,
    EncodeOptions,
    SignedOptions,
    TensorListOptions,
    TensorOptions,
    UnsignedOptions,
    check_integer,
)
from sbert_search.embed.protocol import Task, Vectors
from sbert_search.embed.vectors import VectorPrecision, quantize, unit
from sbert_search.errors import ConfigError, CorpusError

if TYPE_CHECKING:
    from torch import Tensor

Texts = str | Sequence[str]


class EncodeMethods(ABC):
    """Adds `encode`, `encode_query` and `encode_document` to a class that computes vectors."""

    @property
    @abstractmethod
    def device(self) -> str:
        """The device of the model, or several separated by commas."""

    @abstractmethod
    def _vectors(self, texts: list[str], task: Task | None, options: AnyEncodeOptions) -> Vectors:
        """Compute vectors, float32 (n, dim), in no other precision and not normalised."""

    @overload
    def encode(
        self, texts: Texts, *, task: Task | None = None, **options: Unpack[EncodeOptions]
    ) -> Vectors: ...

    @overload
    def encode(
        self, texts: Texts, *, task: Task | None = None, **options: Unpack[SignedOptions]
    ) -> NDArray[np.int8]: ...

    @overload
    def encode(
        self, texts: Texts, *, task: Task | None = None, **options: Unpack[UnsignedOptions]
    ) -> NDArray[np.uint8]: ...

    @overload
    def encode(
        self, texts: Texts, *, task: Task | None = None, **options: Unpack[TensorOptions]
    ) -> Tensor: ...

    @overload
    def encode(
        self, texts: Texts, *, task: Task | None = None, **options: Unpack[TensorListOptions]
    ) -> Tensor | list[Tensor]: ...

    def encode(
        self, texts: Texts, *, task: Task | None = None, **options: Unpack[AnyEncodeOptions]
    ) -> Vectors | NDArray[np.int8] | NDArray[np.uint8] | Tensor | list[Tensor]:
        """Compute vectors; arguments are those of ``SentenceTransformer.encode`` that apply here.

        Args:
            texts: One text or several.
            task: Use the prompt of this name, query or document, if the model has it and neither
                ``prompt_name`` nor ``prompt`` is given.
            options:
                prompt_name: Name of the prompt to put before each text.
                prompt: Text to put before each text instead of a prompt of the model.
                batch_size: Maximum texts of a forward pass; None: only ``batch_tokens`` limits it.
                show_progress_bar: Whether to show progress on stderr; None: no.
                precision: float32, int8, uint8, binary or ubinary; see
                    `sbert_search.embed.vectors.quantize`.
                convert_to_numpy: False: return a list of tensors, one for each text.
                convert_to_tensor: True: return one tensor, on the device of the model.
                normalize_embeddings: Whether to scale vectors to norm 1, before they are quantised.
                truncate_dim: Number of leading dimensions to keep; None: the embedder's setting.

        Returns:
            Float32 (n, dim), or (dim,) if ``texts`` is one string. ``precision`` and the two
            ``convert_to`` options change this to integers, to a tensor or to a list of n tensors.
            With binary and ubinary, the width is ceil(dim / 8). An empty list gives an array
            (0, dim), where sentence-transformers gives (0,).

        Raises:
            ConfigError: The model has no prompt with the name ``prompt_name``, or this package does
                not support the value of an option.
            CorpusError: A text is not a string, or contains a lone surrogate, which UTF-8 cannot
                encode.
            ModelError: This process was forked after the model was loaded, the device has too
                little memory for one text, or the prompt leaves no room for a text.
            TypeError: There is no option of this name.
        """
        return self._encoded(texts, task, options)

    async def aencode(
        self, texts: Texts, *, task: Task | None = None, **options: Unpack[EncodeOptions]
    ) -> Vectors:
        """Call `encode` in a thread, so that the event loop of asyncio goes on.

        The arguments are those of `encode` that keep its result a float32 array.
        """
        import asyncio  # a cold query must not wait for its import

        return await asyncio.to_thread(lambda: self.encode(texts, task=task, **options))

    @overload
    def encode_query(self, texts: Texts, **options: Unpack[EncodeOptions]) -> Vectors: ...

    @overload
    def encode_query(self, texts: Texts, **options: Unpack[SignedOptions]) -> NDArray[np.int8]: ...

    @overload
    def encode_query(
        self, texts: Texts, **options: Unpack[UnsignedOptions]
    ) -> NDArray[np.uint8]: ...

    @overload
    def encode_query(self, texts: Texts, **options: Unpack[TensorOptions]) -> Tensor: ...

    @overload
    def encode_query(
        self, texts: Texts, **options: Unpack[TensorListOptions]
    ) -> Tensor | list[Tensor]: ...

    def encode_query(
        self, texts: Texts, **options: Unpack[AnyEncodeOptions]
    ) -> Vectors | NDArray[np.int8] | NDArray[np.uint8] | Tensor | list[Tensor]:
        """Compute vectors of queries: `encode` with the prompt named query, if any."""
        return self._encoded(texts, "query", options)

    @overload
    def encode_document(self, texts: Texts, **options: Unpack[EncodeOptions]) -> Vectors: ...

    @overload
    def encode_document(
        self, texts: Texts, **options: Unpack[SignedOptions]
    ) -> NDArray[np.int8]: ...

    @overload
    def encode_document(
        self, texts: Texts, **options: Unpack[UnsignedOptions]
    ) -> NDArray[np.uint8]: ...

    @overload
    def encode_document(self, texts: Texts, **options: Unpack[TensorOptions]) -> Tensor: ...

    @overload
    def encode_document(
        self, texts: Texts, **options: Unpack[TensorListOptions]
    ) -> Tensor | list[Tensor]: ...

    def encode_document(
        self, texts: Texts, **options: Unpack[AnyEncodeOptions]
    ) -> Vectors | NDArray[np.int8] | NDArray[np.uint8] | Tensor | list[Tensor]:
        """Compute vectors of documents: `encode` with the prompt named document, if any."""
        return self._encoded(texts, "document", options)

    def _encoded(
        self, texts: Texts, task: Task | None, options: AnyEncodeOptions
    ) -> Vectors | NDArray[np.int8] | NDArray[np.uint8] | Tensor | list[Tensor]:
        self._check(options)
        several = _as_list(texts)
        result: Vectors | NDArray[np.int8] | NDArray[np.uint8]
        result = vectors = self._vectors(several, task, options)
        if options.get("normalize_embeddings", False):
            result = vectors = unit(vectors)
        if (precision := options.get("precision", "float32")) != "float32":
            result = quantize(vectors, precision)
        as_tensor = options.get("convert_to_tensor", False)
        if not as_tensor and options.get("convert_to_numpy", True):
            return result[0] if isinstance(texts, str) else result
        import torch

        tensor = torch.from_numpy(result).to(self.device.partition(",")[0])
        if isinstance(texts, str):
            return tensor[0]
        return tensor if as_tensor else list(tensor)

    def _check(self, options: AnyEncodeOptions) -> None:
        for name in options.keys() - AnyEncodeOptions.__annotations__.keys():
            known = AnyEncodeOptions.__annotations__
            raise TypeError(unknown_name(name, name, known, "argument of encode"))
        precision = options.get("precision", "float32")
        if precision not in get_args(VectorPrecision):
            raise ConfigError(
                unknown_name(precision, precision, get_args(VectorPrecision), "precision")
            )
        for name in ("batch_size", "truncate_dim"):
            if (value := options.get(name)) is not None:
                check_integer(name, value)
        if not isinstance(prompt := options.get("prompt"), str | None):
            raise ConfigError(f"prompt is {prompt!r}; it must be a text.")


def _shown(value: object) -> str:
    from sbert_search.text.formats.rows import excerpt  # only needed for errors

    return excerpt(value)


def _as_list(texts: object) -> list[str]:
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, (bytes, Mapping)) or not isinstance(texts, Iterable):
        raise CorpusError(f"The texts are {_shown(texts)}; pass a text or a list of texts.")
    several = list(texts)
    for number, text in enumerate(several, 1):
        if not isinstance(text, str):
            raise CorpusError(
                f"Text {number:,} of {len(several):,} is {_shown(text)}, which is not a string; "
                "every text must be a string."
            )
    return several
