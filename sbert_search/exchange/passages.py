"""Reading the live passages of an index in blocks, also as records of JSON values."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.columns import ARROW_TYPES, PREFIX
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.index.storage.segments import Segment
from sbert_search.text.formats.rows import BLOCK_ROWS

OWN = ("doc_id", "chunk", "char_start", "char_end", "title", "text")
_NAMESPACE = uuid.UUID("8f9a1f6e-6d0b-5f0a-9d53-0f3f5e1a7c42")  # never changes: ids depend on it


@dataclass(frozen=True, slots=True)
class Passages:
    """Some live passages, in the order of their rows.

    ``char_start`` and ``char_end`` count in the title and the text, joined by a blank. ``text`` is
    the part of the document's text that the passage covers.
    """

    rows: NDArray[np.int64]  # in the index, int64 (n,), ascending
    table: pa.Table  # columns `OWN`, then the metadata of the document
    vectors: NDArray[np.float32]  # float32 (n, dim), as stored

    @property
    def ids(self) -> list[str]:
        """The id of each passage in another engine; see `point_id`."""
        doc_ids, chunks = self.table["doc_id"].to_pylist(), self.table["chunk"].to_pylist()
        return [point_id(doc_id, chunk) for doc_id, chunk in zip(doc_ids, chunks, strict=True)]


def point_id(doc_id: str, chunk: int) -> str:
    """Return the id of a passage in another engine, a UUID that a repeated upload gives again."""
    return str(uuid.uuid5(_NAMESPACE, f"{chunk}\0{doc_id}"))


def read_passages(
    snapshot: Snapshot, columns: Sequence[str], *, skip: int = 0
) -> Iterator[Passages]:
    """Yield all live passages but the first ``skip``, in the order of their rows, in blocks."""
    kinds = {name: snapshot.columns[name] for name in columns}
    readers = [_SegmentReader(segment, kinds) for segment in snapshot.segments]
    rows = snapshot.live_rows()[skip:]
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        parts = [part for reader in readers for part in reader.read(block)]
        yield parts[0] if len(parts) == 1 else _in_order(parts)


def _in_order(parts: Sequence[Passages]) -> Passages:
    """Join passages in the order of their rows; the segments of a sharded index interleave."""
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows)
    tables = [part.table for part in parts]
    table = pa.concat_tables(tables, promote_options="permissive").take(order)
    vectors = np.concatenate([part.vectors for part in parts])
    return Passages(rows[order], table, vectors[order])


class _SegmentReader:
    """Reads live passages of a segment, with the metadata columns ``kinds``."""

    def __init__(self, segment: Segment, kinds: Mapping[str, ColumnType]) -> None:
        self._segment, self._kinds = segment, kinds
        self._last: tuple[int, pa.RecordBatch] | None = None  # the batch that was read last

    def read(self, rows: NDArray[np.int64]) -> Iterator[Passages]:
        """Yield the passages of those rows that the segment holds, one record batch at a time.

        ``rows`` are rows of the index, int64 (n,), ascending and not empty.
        """
        record, step = self._segment.record, self._segment.batch_rows
        if record.row_start > rows[-1] or record.row_end <= rows[0]:
            return
        at = self._segment.positions(rows)
        at = at[at >= 0]
        for part in np.split(at, np.flatnonzero(np.diff(at // step)) + 1):
            if len(part):
                yield self._block(part)

    def _block(self, at: NDArray[np.int64]) -> Passages:
        """Read the passages at some positions, all in one record batch of the segment."""
        segment, step = self._segment, self._segment.batch_rows
        start = int(at[0]) // step * step
        chunks = segment.chunks[at]
        firsts, doc_of = np.unique(at - chunks, return_inverse=True)  # of each document's chunk 0
        batch = self._batch(start // step)
        # Only the first document can begin in an earlier batch.
        documents = [
            _validated(segment, int(f) // step, int(f) % step) for f in firsts if f < start
        ]
        documents.append(batch.take(pa.array(firsts[firsts >= start] - start)))
        of_documents = pa.Table.from_batches(documents)
        own = pa.Table.from_batches([batch.take(pa.array(at - start))])
        titles, texts = (
            [value or "" for value in of_documents[name].to_pylist()] for name in ("title", "text")
        )
        starts, ends = own["char_start"].to_pylist(), own["char_end"].to_pylist()
        passages = [
            _part(titles[doc], texts[doc], begin, end)
            for doc, begin, end in zip(doc_of.tolist(), starts, ends, strict=True)
        ]
        picked = pa.array(doc_of)
        data: dict[str, pa.Array | pa.ChunkedArray] = {
            "doc_id": own["doc_id"],
            "chunk": pa.array(chunks.astype(np.int32)),
            "char_start": own["char_start"],
            "char_end": own["char_end"],
            "title": pa.array([titles[doc] for doc in doc_of.tolist()], pa.large_string()),
            "text": pa.array(passages, pa.large_string()),
        }
        for name, kind in self._kinds.items():
            data[PREFIX + name] = _metadata(of_documents, name, kind).take(picked)
        vectors = np.ascontiguousarray(segment.vectors[at], np.float32)
        return Passages(segment.rows[at], pa.table(data), vectors)

    def _batch(self, index: int) -> pa.RecordBatch:
        if self._last is None or self._last[0] != index:
            self._last = index, _validated(self._segment, index)
        return self._last[1]


def _validated(segment: Segment, index: int, row: int | None = None) -> pa.RecordBatch:
    with segment.corruption_named():
        batch = segment.batch(index)
        batch = batch if row is None else batch.slice(row, 1)
        batch.validate(full=True)
    return batch


def _part(title: str, text: str, start: int, end: int) -> str:
    """Return the part of a text between two offsets in the title and the text together."""
    before = len(title) + 1 if title and text else len(title)
    return text[max(start - before, 0) : max(end - before, 0)]


def _metadata(table: pa.Table, name: str, kind: ColumnType) -> pa.ChunkedArray:
    """Return a column; an older segment may lack it, or hold integers where floats are now."""
    if PREFIX + name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, ARROW_TYPES[kind])])
    # A column becomes float64 only if it represents all its integers. Arrow's own check refuses any
    # integer beyond 2^53.
    return table[PREFIX + name].cast(ARROW_TYPES[kind], safe=kind != "float64")


def records(batch: Passages, fields: Iterable[str]) -> Iterator[dict[str, object]]:
    """Yield a record of each passage.

    The fields of a record are ``doc_id`` (id of the document), ``chunk`` (number of the passage in
    the document), ``title``, ``text``, and the metadata in ``fields``. Dates and times become
    strings in ISO 8601, whose text order is the time order. A missing value has no field.
    """
    names = ("doc_id", "chunk", "title", "text", *fields)
    for row in batch.table.select(names).to_pylist():
        yield {name: json_value(value) for name, value in row.items() if value is not None}


def json_value(value: object) -> object:
    """Convert a value of a column to a JSON value."""
    if isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None)
        return f"{moment.isoformat(timespec='microseconds')}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list):
        return [json_value(item) for item in value]
    return value


def item_type(kind: str) -> tuple[str, bool]:
    """Return the type of single values of a column, and whether the column contains lists."""
    return (kind[5:-1], True) if kind.startswith("list[") else (kind, False)


def engine_types(kinds: Mapping[str, str], types: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's type of each field; a list has the type of its values."""
    return {name: types[item_type(kind)[0]] for name, kind in kinds.items()}
