"""Writing the files of one segment, part by part, from embedded passages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.errors import IndexStoreError
from sbert_search.index.norms import divide_by_norms, largest_norm, norms_of, stored_units
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import ids
from sbert_search.index.storage import segments as npy
from sbert_search.index.storage.manifest import (
    ColumnType,
    FileRecord,
    Manifest,
    SegmentRecord,
    VectorFiles,
    VectorSettings,
)
from sbert_search.index.storage.segments import BATCH_ROWS, with_batch_rows
from sbert_search.index.storage.transaction import Transaction

if TYPE_CHECKING:
    from sbert_search.embed.pipeline import EmbeddedBatch


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """Some rows to write into a segment."""

    docs: pa.Table  # rows of the docs file, with its schema (`columns.schema`)
    vectors: NDArray[np.floating]  # finite, (n_rows, dim), in the type in which they are stored
    max_norm: float | None = None  # largest norm of the vectors; None: not known yet
    # Vectors of sets that are not in use, by the name of the set.
    others: Mapping[str, NDArray[np.floating]] = field(default_factory=dict)


def write_segment(
    work: Transaction,
    parts: Iterable[SegmentPart],
    *,
    table: ids.IdTable,
    n_rows: int,
    manifest: Manifest,
    batch_rows: int = BATCH_ROWS,
    others: Collection[str] = (),
) -> SegmentRecord:
    """Write the files of a segment (documents, vectors, ids) part by part.

    ``parts`` have at least one row each, in ascending order, and ``n_rows`` rows together;
    ``table`` is the id table of all their documents; columns and set of vectors are those of
    ``manifest``. ``others`` are the further sets that all parts have. While the next part is read,
    memory holds only those rows of earlier parts that wait for a full Arrow batch.
    """
    schema = columns_of.schema(manifest.columns)
    first, last = -1, -1
    number = work.new_number()
    numbers = {manifest.active: number} | {name: work.new_number() for name in others}
    norms = dict.fromkeys(numbers, 0.0)
    with ExitStack() as stack:
        docs_file = stack.enter_context(work.new_file(f"seg/{number:06d}.docs.arrow"))
        batches = BatchWriter(docs_file, schema, batch_rows)
        vector_files = {
            name: stack.enter_context(work.new_file(f"seg/{at:06d}.vec.npy"))
            for name, at in numbers.items()
        }
        for name, file in vector_files.items():
            stored = manifest.vectors[name]
            file.write(npy.header(stored.dtype, (n_rows, stored.dim)))
        for part in parts:
            rows = part.docs.column("row")
            first, last = (first if first >= 0 else rows[0].as_py()), rows[-1].as_py()
            batches.write(part.docs)
            for name, vectors in {manifest.active: part.vectors, **part.others}.items():
                vector_files[name].write(np.ascontiguousarray(vectors))
                known = part.max_norm if name == manifest.active else None
                norms[name] = max(norms[name], largest_norm(vectors) if known is None else known)
            del part, rows, vectors  # frees their memory before the next part is read
        batches.close()
    ids_file = work.write_array(f"seg/{number:06d}.ids.npy", table)
    return SegmentRecord(
        row_start=first,
        row_end=last + 1,
        n_rows=n_rows,
        n_docs=table.shape[1],
        columns=dict(manifest.columns),
        docs=FileRecord.of(docs_file),
        vectors={
            name: VectorFiles(file=FileRecord.of(file), max_norm=norms[name])
            for name, file in vector_files.items()
        },
        ids=ids_file,
    )


class BatchWriter:
    """Writes Arrow batches of exactly ``batch_rows`` rows; the last one may be shorter."""

    def __init__(self, file: files.NewFile, schema: pa.Schema, batch_rows: int) -> None:
        self._batch_rows = batch_rows
        self._writer = pa.ipc.new_file(file, with_batch_rows(schema, batch_rows))
        self._waiting: list[pa.Table] = []
        self._n_waiting = 0

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        self._waiting.append(table)
        self._n_waiting += table.num_rows
        if self._n_waiting >= self._batch_rows:
            self._write_out(self._n_waiting - self._n_waiting % self._batch_rows)

    def close(self) -> None:
        """Write the rows that still wait, and the footer of the file."""
        self._write_out(self._n_waiting)
        self._writer.close()

    def _write_out(self, n_rows: int) -> None:
        joined = pa.concat_tables(self._waiting).combine_chunks() if self._waiting else None
        if joined is None or n_rows == 0:
            return
        self._writer.write_table(joined.slice(0, n_rows), max_chunksize=self._batch_rows)
        n_rest = joined.num_rows - n_rows
        # A copy: a slice would keep the memory of all rows.
        rest = [joined.take(pa.array(np.arange(n_rows, joined.num_rows)))] if n_rest else []
        self._waiting, self._n_waiting = rest, n_rest


def make_part(
    batch: EmbeddedBatch[object],
    rows: int | NDArray[np.int64],
    settings: VectorSettings,
    columns: Mapping[str, ColumnType],
) -> tuple[SegmentPart, ids.IdTable]:
    """Turn a batch into rows of a segment, and the id table of their documents.

    Of documents with the same id the last one is kept. ``rows`` is the row, in the index, of the
    first passage that is kept; the other passages get the next rows. Or it is the row of each
    passage of the batch, int64 (n_rows,), ascending.
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


def _check_shape(batch: EmbeddedBatch[object], dim: int) -> None:
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


def _last_of_each_id(batch: EmbeddedBatch[object]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the documents and of the passages of the batch to keep, ascending."""
    last = {document.doc_id: i for i, document in enumerate(batch.documents)}
    kept_docs = np.array(sorted(last.values()), np.int64)
    return kept_docs, np.flatnonzero(np.isin(batch.doc_of, kept_docs))


def _stored_vectors(
    batch: EmbeddedBatch[object], kept_passages: NDArray[np.int64], settings: VectorSettings
) -> NDArray[np.floating]:
    vectors = np.asarray(batch.vectors)[kept_passages]
    _check_finite(vectors, batch, kept_passages, "; the model fails on its text")
    stored = as_stored(vectors, settings)
    kept = np.asarray(batch.stored_row)[kept_passages] >= 0
    # Scaling a stored vector to norm 1 once more could change its last bits.
    stored[kept] = vectors[kept]
    vectors = stored
    remedy = "; build the index with --dtype float32" if settings.dtype == "float16" else ""
    too_large = f" as {settings.dtype}: a component is too large for this type{remedy}"
    _check_finite(vectors, batch, kept_passages, too_large)
    return vectors


def as_stored(vectors: NDArray[np.floating], settings: VectorSettings) -> NDArray[np.floating]:
    """Return finite vectors (n, dim) as an index stores them; a large one may become infinite."""
    if settings.metric == "cosine":
        norms = norms_of(vectors)
        units = divide_by_norms(vectors, norms)
        vectors = stored_units(vectors, units, norms, settings.dtype)
    with np.errstate(over="ignore"):
        return vectors.astype(settings.dtype)


def _check_finite(
    vectors: NDArray[np.floating],
    batch: EmbeddedBatch[object],
    kept_passages: NDArray[np.int64],
    why: str,
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
