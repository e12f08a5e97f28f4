"""Indexing documents with vectors that the user has, in place of those of a model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from sbert_search.embed.pipeline import EmbeddedBatch
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, CorpusError, ModelMismatch
from sbert_search.index.storage.manifest import Metric, VectorType
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import Document
from sbert_search.text.fields import FieldNames
from sbert_search.text.vectors import RowVectors, VectorRule, Vectors, VectorsLike

T = TypeVar("T")


def split_vectors(
    vectors: VectorsLike | None, fields: FieldNames
) -> tuple[RowVectors | None, FieldNames]:
    """Open the array of the vectors, or put the name of their column into the fields.

    A string is the name of a column, unless it ends with ``.npy``.
    """
    if vectors is None:
        return None, fields
    if isinstance(vectors, str) and not vectors.lower().endswith(".npy"):
        return None, replace(fields, vector=vectors)
    return RowVectors.open(vectors), replace(fields, vector=None)


def vector_rule(metric: Metric, dtype: VectorType, dim: int | None = None) -> VectorRule:
    """Return what the vectors of an index must be."""
    return VectorRule(dim=dim, nonzero=metric == "cosine", dtype=dtype)


def dim_of(dim: int | None, embedder: TextEmbedder | None) -> int:
    """Return the dimension of an index; refuse a model with another one than the given vectors."""
    if embedder is None:
        if dim is None:
            raise CorpusError("No row has a vector that can be used, so there is nothing to index.")
        return dim
    if dim not in (None, embedder.dim):
        raise ModelMismatch(
            f"The vectors have {dim} dimensions, and {embedder.identity.name} makes vectors of "
            f"{embedder.dim}. Name the model that made them, or none."
        )
    return embedder.dim


def no_model(dim: int, metric: Metric) -> ModelIdentity:
    """Return the identity that an index stores if its vectors were given without a model."""
    return ModelIdentity(
        name="vectors",
        weights_sha256="",
        tokenizer_sha256="",
        architecture="",
        pooling="",
        max_len=0,
        dim=dim,
        similarity=metric,
        normalize=metric == "cosine",
        engine=ModelIdentity.NO_ENGINE,
    )


def refuse_model_options(options: Iterable[str]) -> None:
    """Refuse options that open a model, where vectors are given and no model is named."""
    if names := sorted(options):
        raise ConfigError(
            f"{', '.join(names)}: no model is opened, since the vectors are given. Name the model "
            "too, or leave these options out."
        )


def given_batches(
    batches: Iterable[tuple[Sequence[Document], Vectors | None, T]], advance: Callable[[int], None]
) -> Generator[EmbeddedBatch[T]]:
    """Yield batches with given vectors, in the form that `embed_batches` yields.

    Each document is one passage with 0 tokens.
    """
    for documents, vectors, payload in batches:
        assert vectors is not None
        n, zeros = len(documents), np.zeros(len(documents), np.int32)
        lengths = (len(document.full_text) for document in documents)
        advance(n)
        yield EmbeddedBatch(
            documents=documents,
            doc_of=np.arange(n),
            chunk=zeros,
            char_start=zeros.astype(np.int64),
            char_end=np.fromiter(lengths, np.int64, n),
            n_tokens=zeros,
            lost_tokens=zeros,
            vectors=vectors,
            stored_row=np.full(n, -1),
            payload=payload,
            held_bytes=vectors.nbytes,
            given=True,
        )
