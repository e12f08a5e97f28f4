"""Writing the files of one segment part by part, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.base.folders import Entry, Folder
from sbert_search.index.norms import largest_norm
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import ids, npy
from sbert_search.index.storage.manifest import ColumnType, FileRecord, SegmentRecord, StoreSettings
from sbert_search.index.storage.segments import BATCH_ROWS, with_batch_rows


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """Some rows to write into a segment.

    Attributes:
        docs: The rows of the docs file, with its schema (`columns.schema`).
        vectors: Finite vectors (n_rows, dim), in the type in which they are stored.
        max_norm: Largest norm of the vectors; None: not known yet.
    """

    docs: pa.Table
    vectors: NDArray[np.floating]
    max_norm: float | None = None


def write_segment(
    folder: Folder,
    number: int,
    parts: Iterable[SegmentPart],
    *,
    table: ids.IdTable,
    n_rows: int,
    settings: StoreSettings,
    columns: Mapping[str, ColumnType],
    batch_rows: int = BATCH_ROWS,
) -> SegmentRecord:
    """Write the files of a segment (documents, vectors, ids) part by part.

    Args:
        folder: The index.
        number: An unused file number.
        parts: Parts with at least one row each, in ascending order of rows. While the next part is
            read, memory holds only those rows of earlier parts that wait for a full batch.
        table: Id table of all documents of the segment.
        n_rows: Number of rows of all parts together.
        settings: Settings of the index; gives type and dimension of the vectors.
        columns: Metadata columns of the segment.
        batch_rows: Number of rows in an Arrow batch, which is held in memory while it is written.

    Raises:
        OSError: The disk failed. The partial files are in no manifest, so a later writer removes
            them.
    """
    schema = columns_of.schema(columns)
    first, last, max_norm = -1, -1, 0.0
    with (
        files.NewFile(folder / f"seg/{number:06d}.docs.arrow") as docs_file,
        files.NewFile(folder / f"seg/{number:06d}.vec.npy") as vectors_file,
    ):
        batches = BatchWriter(docs_file, schema, batch_rows)
        vectors_file.write(npy.header(settings.dtype, (n_rows, settings.dim)))
        for part in parts:
            rows = part.docs.column("row")
            first, last = (first if first >= 0 else rows[0].as_py()), rows[-1].as_py()
            batches.write(part.docs)
            vectors_file.write(np.ascontiguousarray(part.vectors))
            norm = largest_norm(part.vectors) if part.max_norm is None else part.max_norm
            max_norm = max(max_norm, norm)
            del part, rows  # frees their memory before the next part is read
        batches.close()
    ids_file = npy.write(folder / f"seg/{number:06d}.ids.npy", table)
    return SegmentRecord(
        row_start=first,
        row_end=last + 1,
        n_rows=n_rows,
        n_docs=table.shape[1],
        max_norm=max_norm,
        columns=dict(columns),
        docs=record_of(docs_file),
        vectors=record_of(vectors_file),
        ids=record_of(ids_file),
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


def record_of(file: files.NewFile) -> FileRecord:
    """Return the record of an index file that was just written."""
    assert isinstance(file.place, Entry)
    return FileRecord(name=file.place.below, size_bytes=file.n_bytes, xxh3_128=file.digest)
