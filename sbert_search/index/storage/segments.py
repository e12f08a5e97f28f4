"""One segment: the memory-mapped documents, vectors and ids of a range of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from sbert_search.base import arrays as npy
from sbert_search.base import files
from sbert_search.base.arrays import header, write
from sbert_search.base.folders import Folder
from sbert_search.errors import CorruptIndex, IndexStoreError
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import ids
from sbert_search.index.storage.columns import exact_as_float
from sbert_search.index.storage.manifest import FileRecord, Manifest, SegmentRecord

__all__ = ["header", "read", "write"]


def read(view: memoryview, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return mapped bytes as an array, without copying them; refuse another type or shape."""
    try:
        return npy.read(view, dtype, shape)
    except npy.AnotherArray as error:
        raise CorruptIndex(name, error.expected, error.got) from error


BATCH_ROWS = 1024  # rows of one Arrow batch, unless the schema of the file records a smaller number
ROW_BYTES = 1024  # estimated memory of a row without its texts
READ_BYTES = 16 << 20  # bytes of rows that are converted to Python values together
HASH_AT_OPEN_BYTES = 64 << 20  # larger files are hashed later: see `Segment.verify`
REMAKE = "Searches work without the file; `sbert-search index repair` makes it again."
"""Remedy for damage to a derived file (FAISS index or postings)."""

_BATCH_ROWS_KEY = b"rows_per_batch"  # in the schema metadata of docs files with smaller batches


class Segment:
    """A segment on disk. Its files are memory-mapped.

    Opening a segment compares the sizes of its files with the manifest, and the hashes of files of
    at most `HASH_AT_OPEN_BYTES`. A position is the index of a row inside the segment, from 0.
    """

    def __init__(self, folder: Folder, record: SegmentRecord, manifest: Manifest) -> None:
        self.record, self.stored = record, record.vectors[manifest.active]
        dim, dtype = manifest.settings.dim, manifest.settings.dtype
        self._views = {
            file: open_checked(folder, file) for file in (record.docs, self.stored.file, record.ids)
        }
        docs, vectors, table = self._views.values()
        self.vectors = read(vectors, self.stored.file.name, dtype, (record.n_rows, dim))
        self.ids: ids.IdTable = read(table, record.ids.name, "u8", (3, record.n_docs))
        self._docs = pa.py_buffer(docs)
        self._id_batches: dict[int, IdBatch] = {}
        self._rounded: dict[str, bool] = {}
        self._row_bytes: dict[int, int] = {}
        self._reader = self._open_docs()

    @property
    def n_rows(self) -> int:
        """Number of rows, including dead ones."""
        return self.record.n_rows

    @property
    def max_norm(self) -> float:
        """Largest norm of a vector."""
        return self.stored.max_norm

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The row at each position, int64 (n_rows,), ascending, inside the recorded range."""
        record = self.record
        if record.row_end - record.row_start == record.n_rows:
            return np.arange(record.row_start, record.row_end)
        rows = self.int_column("row", np.int64)
        first, last = record.row_start, record.row_end - 1
        if (rows[0], rows[-1]) != (first, last) or not (rows[1:] > rows[:-1]).all():
            expected = f"ascending row numbers from {first} to {last}"
            raise CorruptIndex(record.docs.name, expected, "other row numbers")
        return rows

    @cached_property
    def chunks(self) -> NDArray[np.int64]:
        """Number, in its document, of the passage at each position, int64 (n_rows,), from 0."""
        record = self.record
        if record.n_docs == record.n_rows:
            return np.zeros(record.n_rows, np.int64)
        chunks = self.int_column("chunk", np.int32).astype(np.int64)
        in_order = (chunks[1:] == 0) | (chunks[1:] == chunks[:-1] + 1)
        if chunks[0] or not in_order.all() or np.count_nonzero(chunks == 0) != record.n_docs:
            expected = f"{record.n_docs} documents with passages 0, 1, 2, ..."
            raise CorruptIndex(record.docs.name, expected, "other numbers of passages")
        return chunks

    @cached_property
    def firsts(self) -> NDArray[np.int64]:
        """Position of the first passage of each document, int64 (n_docs,)."""
        return np.flatnonzero(self.chunks == 0)

    def verify(self, *, vectors: bool = True) -> None:
        """Hash the files that were too large to be hashed when they were opened.

        Merges and builds of postings call it before they write files from this segment.
        """
        for record, view in self._views.items():
            is_skipped = record == self.stored.file and not vectors
            if len(view) > HASH_AT_OPEN_BYTES and not is_skipped:
                check_hash(view, record)

    def positions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each row, -1 where the segment does not hold the row."""
        record = self.record
        if record.row_end - record.row_start == record.n_rows:
            at = rows - record.row_start
            return np.where((at >= 0) & (at < record.n_rows), at, -1)
        at = np.searchsorted(self.rows, rows)
        at[at == self.n_rows] = 0
        return np.where(self.rows[at] == rows, at, -1)

    def firsts_of(self, columns: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Return the position of each document's first passage, given columns of the id table."""
        at = self.positions(self.ids[1, columns].astype(np.int64))
        if (at < 0).any() or self.chunks[at].any():
            expected = "rows of first passages of documents"
            raise CorruptIndex(self.record.ids.name, expected, "other rows")
        return at

    def int_column(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        """Read a whole integer column, (n_rows,)."""
        # From Arrow's buffers, since `ChunkedArray.to_numpy` imports pandas.
        width = np.dtype(dtype).itemsize
        chunks = self.table([name]).column(name).chunks
        views = (
            np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * width)
            for chunk in chunks
        )
        return np.concatenate(list(views))

    def table(self, names: Sequence[str]) -> pa.Table:
        """Read whole columns, and check their offsets and UTF-8."""
        schema = columns_of.schema(self.record.columns)
        fields = [schema.get_field_index(name) for name in names]
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        with self.corruption_named():
            table = pa.ipc.open_file(self._docs, options=options).read_all()
            table.validate(full=True)
        return table

    def rounded_as_float(self, name: str) -> bool:
        """Whether float64 would round integers of a metadata column; the answer is cached."""
        if self.record.columns.get(name) != "int64":
            return False
        if name not in self._rounded:
            column = self.table([columns_of.PREFIX + name]).column(0).fill_null(0)
            exact = (exact_as_float(part.to_numpy()).all() for part in column.chunks)
            self._rounded[name] = not all(exact)
        return self._rounded[name]

    def has_list_items(self, name: str) -> bool:
        """Whether a list of a metadata column has a value."""
        if name not in self.record.columns:
            return False
        column = self.table([columns_of.PREFIX + name]).column(0)
        return any(len(part.flatten()) for part in column.chunks)

    def batch(self, index: int) -> pa.RecordBatch:
        """Read the Arrow batch whose first position is ``index * batch_rows``."""
        with self.corruption_named():
            return self._reader.get_batch(index)

    def rows_at(self, positions: Iterable[int]) -> list[pa.RecordBatch]:
        """Read and check the rows at some positions, each as a batch of one row."""
        step, batches = self.batch_rows, {}
        rows = []
        for at in positions:
            index, row = divmod(at, step)
            if index not in batches:  # which takes longer than to cut a row out of it
                batches[index] = self.batch(index)
            rows.append(batches[index].slice(row, 1))
        with self.corruption_named():
            for row in rows:
                row.validate(full=True)
        return rows

    def max_row_bytes(self, at: int) -> int:
        """Return an upper bound for the bytes of a row, given its position.

        The bound is the same for all rows of an Arrow batch and is computed once per batch, since
        `RecordBatch.nbytes` of a slice would take 60 microseconds per row.
        """
        index = at // self.batch_rows
        if index not in self._row_bytes:
            with self.corruption_named():
                self._row_bytes[index] = sum(map(_max_bytes, self.batch(index).columns))
        return self._row_bytes[index]

    def passages(self, index: int) -> Iterator[dict[str, object]]:
        """Yield the rows of one batch as dictionaries by column name, a part at a time."""
        batch = self.batch(index)
        with self.corruption_named():
            batch.validate(full=True)
            step = max(1, READ_BYTES * batch.num_rows // max(1, batch.nbytes))
            for start in range(0, batch.num_rows, step):
                yield from batch.slice(start, step).to_pylist()

    def texts_at(self, positions: NDArray[np.int64]) -> Iterator[tuple[str, str]]:
        """Read title and text of documents, given ascending positions of their first passages."""
        step = self.batch_rows
        for index, group in groupby(positions.tolist(), lambda at: at // step):
            with self.corruption_named():
                batch = self.batch(index).select(["title", "text"])
                batch.validate(full=True)
            titles, texts = batch.columns
            for at in group:
                yield titles[at % step].as_py() or "", texts[at % step].as_py() or ""

    def bytes_at(self, positions: NDArray[np.int64]) -> int:
        """Estimate the bytes of the rows at some positions, without their vectors."""
        step = self.batch_rows
        return sum(
            ROW_BYTES + self.batch(at // step).slice(at % step, 1).nbytes
            for at in positions.tolist()
        )

    def doc_ids(self, positions: NDArray[np.int64]) -> list[str]:
        """Read the document ids at some positions, in the order of ``positions``."""
        doc_ids, step = [], self.batch_rows
        for at in positions.tolist():
            batch = self._id_batches.get(at // step) or self._map_ids(at // step)
            i = at % step
            doc_ids.append(str(batch.text[batch.starts[i] : batch.starts[i + 1]], "utf-8"))
        return doc_ids

    def metadata_at(self, name: str, positions: NDArray[np.int64]) -> list[object]:
        """Read the values of a metadata column at some positions; None where there is no value."""
        if name not in self.record.columns:
            return [None] * len(positions)
        step, values = self.batch_rows, []
        for at in positions.tolist():
            value = self.batch(at // step).column(columns_of.PREFIX + name).slice(at % step, 1)
            with self.corruption_named():
                value.validate(full=True)
                values += value.to_pylist()
        return values

    def has_values(self, column: str, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return at which positions a column, such as ``title``, has a value that is not "", (n,).

        A metadata column is named with its prefix.
        """
        import pyarrow.compute as pc  # not for searches

        has, step = np.zeros(len(positions), bool), self.batch_rows
        if column not in columns_of.schema(self.record.columns).names:
            return has
        for index in np.unique(positions // step).tolist():
            values, here = self.batch(index).column(column), positions // step == index
            with self.corruption_named():
                values.validate(full=True)
            known = pc.is_valid(values)
            if pa.types.is_large_string(values.type):
                known = pc.and_(known, pc.fill_null(pc.not_equal(values, ""), False))
            has[here] = known.to_numpy(zero_copy_only=False)[positions[here] % step]
        return has

    def _map_ids(self, index: int) -> IdBatch:
        column = self.batch(index).column("doc_id")
        with self.corruption_named():
            column.validate(full=True)
        self._id_batches[index] = IdBatch.of(column)
        return self._id_batches[index]

    def _open_docs(self) -> pa.RecordBatchFileReader:
        with self.corruption_named():
            reader = pa.ipc.open_file(self._docs)
            self.batch_rows = _batch_rows(reader.schema)
            n_batches = -(-self.record.n_rows // self.batch_rows)
            if reader.num_record_batches != n_batches:
                raise pa.ArrowInvalid(f"{reader.num_record_batches} batches, not {n_batches}")
            if not reader.schema.equals(columns_of.schema(self.record.columns)):
                raise pa.ArrowInvalid("columns that differ from those in the manifest")
        return reader

    def corruption_named(self) -> _CorruptionNamed:
        """Return a context that turns read errors of Arrow into `CorruptIndex`."""
        return _CorruptionNamed(self.record.docs.name)


def with_batch_rows(schema: pa.Schema, batch_rows: int) -> pa.Schema:
    """Record the rows per batch in the schema of a docs file, unless they are `BATCH_ROWS`."""
    if batch_rows == BATCH_ROWS:
        return schema
    return schema.with_metadata({_BATCH_ROWS_KEY: str(batch_rows).encode()})


def _batch_rows(schema: pa.Schema) -> int:
    noted = (schema.metadata or {}).get(_BATCH_ROWS_KEY, b"%d" % BATCH_ROWS)
    if not noted.isdigit() or not 1 <= int(noted[:5]) <= BATCH_ROWS:
        raise pa.ArrowInvalid(f"{noted[:20]!r} rows in a batch")
    return int(noted)


def _max_bytes(column: pa.Array) -> int:
    """Return an upper bound for the bytes of each value of a column."""
    if pa.types.is_large_string(column.type):
        column.validate()  # checks that the buffer of the offsets is long enough
        ends = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, 8 * column.offset)
        return int(np.diff(ends).max(initial=0)) + 16  # the text and two offsets
    return int(column.nbytes) if pa.types.is_nested(column.type) else 8


class IdBatch(NamedTuple):
    """The document ids of one batch as views into the mapped file; reading an id takes 0.4 us."""

    # Offsets in `text`, one more than ids: id i is text[starts[i]:starts[i + 1]].
    starts: memoryview
    text: memoryview  # all ids, one after the other, as UTF-8

    @classmethod
    def of(cls, column: pa.LargeStringArray) -> IdBatch:
        """Map a validated column; its buffers may be longer than the column."""
        _, starts, text = column.buffers()
        used = memoryview(starts)[: 8 * (column.offset + len(column) + 1)]
        return cls(used.cast("q")[column.offset :], memoryview(text or b""))


class _CorruptionNamed:
    """Context manager that turns Arrow's read errors into `CorruptIndex` with the file's name.

    It is a class because every read enters it, and `contextlib.contextmanager` is slower.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (pa.ArrowException, OSError, UnicodeDecodeError)):
            raise CorruptIndex(self.name, "a sound Arrow file", str(error)) from error


def open_checked(
    folder: Folder, record: FileRecord, *, hash_up_to: int = HASH_AT_OPEN_BYTES
) -> memoryview:
    """Map a file; compare its size, and its hash if the file is small, with its record.

    `FileNotFoundError`: the file is gone.
    """
    try:
        view = files.map_file(folder / record.on_disk)
    except FileNotFoundError:
        raise
    except OSError as error:
        if not files.is_fault_of_file(error):
            raise IndexStoreError(f"{folder / record.name} cannot be read: {error}.") from error
        raise damage(record.name, "a file that can be read", str(error)) from error
    if record.on_disk != record.name:
        view = _part_of_pack(view, record)
    if len(view) != record.size_bytes:
        raise damage(record.name, f"{record.size_bytes} bytes", f"{len(view)} bytes")
    if len(view) <= hash_up_to:
        check_hash(view, record)
    return view


def _part_of_pack(pack: memoryview, record: FileRecord) -> memoryview:
    """Cut a file out of its pack; the bytes up to the next file must be 0, as they have no hash."""
    if pack[: files.PACK_ALIGNMENT] != files.pack_header(len(pack)):
        raise damage(record.name, f"the header of a pack of {len(pack)} bytes", "other bytes")
    end = record.offset + record.size_bytes
    if any(pack[end : end + -end % files.PACK_ALIGNMENT]):
        raise damage(record.name, "zeros behind the file", "other bytes")
    return pack[record.offset : end]


def check_hash(view: memoryview, record: FileRecord) -> None:
    """Raise `CorruptIndex` if the hash of mapped bytes differs from the one in their record."""
    actual = files.xxh3_128_of_view(view)
    if actual != record.xxh3_128:
        raise damage(record.name, f"xxh3_128 {record.xxh3_128}", actual)


def damage(name: str, expected: str, got: str) -> CorruptIndex:
    """Return the error for a damaged file; the remedy for a derived file is to make it again."""
    is_derived = name.split(":")[-1].split("/")[-2:-1] in (["ann"], ["lex"])
    return CorruptIndex(name, expected, got, REMAKE if is_derived else "")
