"""Turning embedded passages into the content of a segment: Arrow table, vectors, id table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.errors import IndexStoreError
from sbert_search.index.norms import divide_by_norms, norms_of, stored_units
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import ids
from sbert_search.index.storage.manifest import ColumnType, StoreSettings
from sbert_search.index.storage.segment_writer import SegmentPart
from sbert_search.records import Document

IntArray = NDArray[np.int64] | NDArray[np.int32]


class PassageBatch(Protocol):
    """Documents with their embedded passages, as the embedding pipeline returns them."""

    @property
    def documents(self) -> Sequence[Document]:
        """The documents."""

    @property
    def doc_of(self) -> IntArray:
        """Index in ``documents`` of each passage's document, (n_rows,), ascending, without gaps."""

    @property
    def chunk(self) -> IntArray:
        """Number of each passage in its document, (n_rows,), from 0."""

    @property
    def char_start(self) -> IntArray:
        """Start of each passage in ``Document.full_text``, (n_rows,)."""

    @property
    def char_end(self) -> IntArray:
        """End of each passage in ``Document.full_text``, (n_rows,)."""

    @property
    def n_tokens(self) -> IntArray:
        """Number of tokens embedded of each passage, (n_rows,)."""

    @property
    def lost_tokens(self) -> IntArray:
        """Number of tokens of each passage that were cut off to fit the model, (n_rows,)."""

    @property
    def vectors(self) -> NDArray[np.floating]:
        """Embeddings, (n_rows, dim)."""

    @property
    def given(self) -> bool:
        """Whether the user gave the vectors, one for each document.

        If so, a document counts as changed when its vector has changed.
        """


def make_part(
    batch: PassageBatch,
    rows: int | NDArray[np.int64],
    settings: StoreSettings,
    columns: Mapping[str, ColumnType],
) -> tuple[SegmentPart, ids.IdTable]:
    """Turn a batch into rows of a segment; of documents with the same id the last one is kept.

    Args:
        batch: At least one document.
        rows: Row, in the index, of the first passage that is kept; the other passages get the next
            rows. Or the row of each passage of the batch, int64 (n_rows,), ascending.
        settings: Settings of the index.
        columns: Metadata columns of the index.

    Returns:
        The rows to write, and the id table of their documents.

    Raises:
        IndexStoreError: Passages and documents do not match, or vectors have another dimension or
            are no real numbers. Or a vector is not finite, or a metadata value does not fit its
            column.
    """
    _check_shape(batch, settings.dim)
    kept_docs, kept_passages = _last_of_each_id(batch)
    documents = [batch.documents[i] for i in kept_docs]
    doc_of = np.searchsorted(kept_docs, np.asarray(batch.doc_of)[kept_passages])
    vectors = _stored_vectors(batch, kept_passages, settings)
    if isinstance(rows, int):
        rows = np.arange(rows, rows + len(kept_passages))
    else:
        rows = rows[kept_passages]
    chunk = np.asarray(batch.chunk)[kept_passages]
    doc_if_first = [documents[d] if c == 0 else None for d, c in zip(doc_of, chunk, strict=True)]
    arrays = {
        "row": pa.array(rows),
        "doc_id": pa.array([documents[d].doc_id for d in doc_of], pa.large_string()),
        "title": _texts([doc and doc.title for doc in doc_if_first]),
        "text": _texts([doc and doc.text for doc in doc_if_first]),
        "source": _texts([doc and doc.source for doc in doc_if_first]),
    }
    for name in ("chunk", "char_start", "char_end", "n_tokens", "lost_tokens"):
        kind = columns_of.FIXED.field(name).type
        arrays[name] = pa.array(np.asarray(getattr(batch, name))[kept_passages], kind)
    for name, kind in columns.items():
        arrays[columns_of.PREFIX + name] = columns_of.metadata_array(doc_if_first, name, kind)
    schema = columns_of.schema(columns)
    table = ids.make_table(
        ids.hash_ids([document.doc_id for document in documents]),
        rows[chunk == 0],
        ids.hash_contents(documents, batch.vectors[kept_docs] if batch.given else None),
    )
    docs = pa.table([arrays[name] for name in schema.names], schema)
    return SegmentPart(docs, vectors), table


def _check_shape(batch: PassageBatch, dim: int) -> None:
    vectors, doc_of, chunk = batch.vectors, np.asarray(batch.doc_of), np.asarray(batch.chunk)
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise IndexStoreError(
            f"The vectors have shape {vectors.shape}; this index holds vectors of {dim} dimensions."
        )
    if vectors.dtype.kind not in "fiu":
        raise IndexStoreError(
            f"The vectors are of type {vectors.dtype}; they must be real numbers."
        )
    starts = np.flatnonzero(np.diff(doc_of, prepend=-1))
    counts = np.diff(starts, append=len(doc_of))
    expected_chunk = np.arange(len(doc_of)) - np.repeat(starts, counts)
    complete = np.array_equal(doc_of[starts], np.arange(len(batch.documents)))
    if len(vectors) != len(doc_of) or not complete or not np.array_equal(chunk, expected_chunk):
        raise IndexStoreError(
            "The passages do not fit their documents: each document needs passages 0, 1, 2, ... "
            "in one run, with one vector each."
        )


def _last_of_each_id(batch: PassageBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the documents and of the passages of the batch to keep, ascending."""
    last = {document.doc_id: i for i, document in enumerate(batch.documents)}
    kept_docs = np.array(sorted(last.values()), np.int64)
    return kept_docs, np.flatnonzero(np.isin(batch.doc_of, kept_docs))


def _stored_vectors(
    batch: PassageBatch, kept_passages: NDArray[np.int64], settings: StoreSettings
) -> NDArray[np.floating]:
    vectors = np.asarray(batch.vectors)[kept_passages]
    _check_finite(vectors, batch, kept_passages, "; the model fails on its text")
    if settings.metric == "cosine":
        norms = norms_of(vectors)
        units = divide_by_norms(vectors, norms)
        vectors = stored_units(vectors, units, norms, settings.dtype)
    with np.errstate(over="ignore"):  # an overflow gives infinity, which is checked below
        vectors = vectors.astype(settings.dtype)
    remedy = "; build the index with --dtype float32" if settings.dtype == "float16" else ""
    too_large = f" as {settings.dtype}: a component is too large for this type{remedy}"
    _check_finite(vectors, batch, kept_passages, too_large)
    return vectors


def _check_finite(
    vectors: NDArray[np.floating], batch: PassageBatch, kept_passages: NDArray[np.int64], why: str
) -> None:
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        document = batch.documents[int(batch.doc_of[kept_passages[np.argmin(finite)]])]
        raise IndexStoreError(
            f"The vector of document {document.doc_id!r} ({document.source or 'no source'}) is not "
            f"finite{why}. Nothing of this batch was written."
        )


def _texts(values: Sequence[str | None]) -> pa.Array:
    return pa.array(values, pa.large_string())
