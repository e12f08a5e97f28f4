"""Reading the rows of a segment: passages, documents, and the distinct values of a column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import compress, groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.index.storage.columns import ARROW_TYPES, PREFIX
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.index.storage.segments import READ_BYTES, Segment
from sbert_search.records import Document, ScalarValue


class StoredPassage(NamedTuple):
    """A stored passage, with the whole document it belongs to."""

    document: Document
    row: int  # its number in the index
    doc_row: int  # row of the document's first passage, which identifies the document
    chunk: int  # number of this passage in the document, from 0
    char_start: int  # in ``document.full_text``
    char_end: int  # in ``document.full_text``
    n_tokens: int  # embedded
    lost_tokens: int  # cut off, because the model reads only a limited number

    @property
    def text(self) -> str:
        """Text of the passage, with the title if the passage contains it."""
        return self.document.full_text[self.char_start : self.char_end]


def read_passages(
    places: Iterable[tuple[Segment, NDArray[np.int64]]], columns: Mapping[str, ColumnType]
) -> Iterator[StoredPassage]:
    """Read the passages at positions (n,) of segments, in this order, with their documents.

    ``columns`` are those of the index. A segment may have int64 where the index has float64.
    """
    wanted = []  # segment, positions, and for each position that of its document's first passage
    needed = []  # segment, and all positions to read
    for segment, positions in places:
        at = positions.tolist()
        firsts = (positions - segment.chunks[positions]).tolist()
        wanted.append((segment, positions, firsts))
        needed.append((segment, list(dict.fromkeys(at + firsts))))
    values = iter(_values(needed))
    for (segment, positions, firsts), (_, here) in zip(wanted, needed, strict=True):
        read = {at: next(values) for at in here}
        floats = _floats(segment, columns)
        places_of = zip(segment.rows[positions].tolist(), positions.tolist(), firsts, strict=True)
        for row, position, first in places_of:
            passage, chunk = read[position], position - first
            yield StoredPassage(
                document=_document(read[first], floats),
                row=row,
                doc_row=row - chunk,
                chunk=chunk,
                char_start=passage["char_start"],
                char_end=passage["char_end"],
                n_tokens=passage["n_tokens"],
                lost_tokens=passage["lost_tokens"],
            )


def _values(places: Sequence[tuple[Segment, list[int]]]) -> Iterator[dict[str, Any]]:
    """Read rows of segments as dictionaries of values by column name.

    Rows of successive segments with the same columns are converted together, since each call of
    `to_pylist` takes 100 microseconds in addition to the time of its rows.
    """
    for _, group in groupby(places, lambda place: place[0].record.columns):
        for rows in _groups(
            (row, segment.max_row_bytes(position))
            for segment, at in group
            for position, row in zip(at, segment.rows_at(at), strict=True)
        ):
            yield from pa.concat_batches(rows).to_pylist()


def _groups(rows: Iterable[tuple[pa.RecordBatch, int]]) -> Iterator[list[pa.RecordBatch]]:
    """Group successive rows to at most `READ_BYTES`; a larger row is a group of its own."""
    group: list[pa.RecordBatch] = []
    size = 0
    for row, n_bytes in rows:
        if group and size + n_bytes > READ_BYTES:
            yield group
            group, size = [], 0
        group.append(row)
        size += n_bytes
    if group:
        yield group


def read_documents(
    segment: Segment, live: NDArray[np.bool_] | None, columns: Mapping[str, ColumnType]
) -> Iterator[Document]:
    """Read the documents of a segment that are live (None: all), in the order of their rows.

    ``columns`` as for `read_passages`.
    """
    floats = _floats(segment, columns)
    first = segment.chunks == 0 if live is None else (segment.chunks == 0) & live
    step = segment.batch_rows
    for start in range(0, segment.n_rows, step):
        marks = first[start : start + step]
        if marks.any():
            for values in compress(segment.passages(start // step), marks):
                yield _document(values, floats)


def _floats(segment: Segment, columns: Mapping[str, ColumnType]) -> list[str]:
    """Return the columns that are int64 in a segment and float64 in the index."""
    own = segment.record.columns
    return [n for n, kind in own.items() if kind == "int64" and columns.get(n) == "float64"]


def _document(values: Mapping[str, Any], floats: Sequence[str]) -> Document:
    metadata = {
        name.removeprefix(PREFIX): value
        for name, value in values.items()
        if name.startswith(PREFIX) and value is not None
    }
    metadata |= {name: float(metadata[name]) for name in floats if name in metadata}
    return Document(
        doc_id=values["doc_id"],
        text=values["text"] or "",
        title=values["title"] or "",
        metadata=metadata,
        source=values["source"] or "",
    )


Ordered: TypeAlias = int | float | date | datetime
"""A value of a column of numbers, dates or times."""

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Indices of documents in their segment, ascending, and the codes of their values; both (n,)."""


class DistinctValues(NamedTuple):
    """The values of a metadata column, each replaced by a code."""

    values: pa.Array  # ascending; the code of a value is its index
    # For each segment, the documents with a value and the codes of these values. In a column of
    # lists, a document has one pair for each distinct value in its list.
    parts: tuple[Pairs, ...]

    def value(self, code: int) -> ScalarValue:
        """Return the value with a code."""
        value: ScalarValue = self.values[code].as_py()
        return value

    def numbers(self, codes: NDArray[np.int64]) -> list[float]:
        """Return the values of ``codes``, each as the number that Arrow stores for it.

        A date becomes the number of days since 1970, a time the number of microseconds since 1970.
        """
        numbers: list[float] = self.values.take(pa.array(codes)).cast(self._stored).to_pylist()
        return numbers

    def of_number(self, number: float) -> Ordered:
        """Return the value that a number stands for; the inverse of `numbers`."""
        value: Ordered = pa.scalar(number, self._stored).cast(self.values.type).as_py()
        return value

    @property
    def _stored(self) -> pa.DataType:
        if pa.types.is_date32(self.values.type):
            return pa.int32()
        return pa.float64() if pa.types.is_floating(self.values.type) else pa.int64()

    def codes_of_documents(self, index: int, n_docs: int) -> NDArray[np.int64]:
        """Return the code of each document of a segment, int64 (n_docs,); -1 without a value."""
        docs, codes = self.parts[index]
        every = np.full(n_docs, -1, np.int64)
        every[docs] = codes
        return every


def distinct_values(segments: Sequence[Segment], name: str, kind: ColumnType) -> DistinctValues:
    """Read a metadata column of all documents, also of deleted ones."""
    import pyarrow.compute as pc  # most searches do not need it, and it imports slowly

    element = ARROW_TYPES[kind.removeprefix("list[").removesuffix("]")]
    # An older segment may have int64 where the index has float64, so the values are cast.
    columns = [_values_of(segment, name, element) for segment in segments]
    encoded = pa.chunked_array([values for _, values in columns], element).dictionary_encode()
    encoded = encoded.unify_dictionaries()
    values = encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], element)
    rank = np.empty(len(values), np.int64)
    rank[pc.array_sort_indices(values).to_numpy()] = np.arange(len(values))
    chunks = iter(encoded.chunks)  # Arrow leaves out the chunks without a value
    parts = tuple(
        _without_repeats(docs, rank[next(chunks).indices.to_numpy()], len(values))
        if len(docs)
        else (docs, docs)
        for docs, _ in columns
    )
    return DistinctValues(values.take(pc.array_sort_indices(values)), parts)


def _values_of(
    segment: Segment, name: str, element: pa.DataType
) -> tuple[NDArray[np.int64], pa.Array]:
    """Return the indices of documents of a segment, and the value of each; nulls are left out."""
    import pyarrow.compute as pc  # most searches do not need it, and it imports slowly

    if name not in segment.record.columns:
        return np.empty(0, np.int64), pa.array([], element)
    column = segment.table([PREFIX + name]).column(0).combine_chunks()
    if segment.record.n_docs < segment.n_rows:
        column = column.take(pa.array(segment.firsts))
    docs = np.arange(len(column))
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        docs, column = pc.list_parent_indices(column).to_numpy(), pc.list_flatten(column)
    known = pc.is_valid(column)
    docs = docs[known.to_numpy(zero_copy_only=False)]
    # Arrow's check of casts to float64 refuses all integers beyond 2**53, even exact ones.
    values = column.filter(known).cast(element, safe=element != pa.float64())
    if pa.types.is_floating(element):
        values = pc.add(values, 0.0)  # -0.0 becomes 0.0, to which it is equal
    return docs.astype(np.int64), values


def _without_repeats(docs: NDArray[np.int64], codes: NDArray[np.int64], n_values: int) -> Pairs:
    if len(docs) == 0 or (docs[1:] > docs[:-1]).all():
        return docs, codes
    pairs = np.unique(docs * n_values + codes)
    return pairs // n_values, pairs % n_values
