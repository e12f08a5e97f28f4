"""The distinct values of a metadata column, and which documents have which value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.index.storage.columns import ARROW_TYPES, PREFIX
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.index.storage.segments import Segment
from sbert_search.records import ScalarValue

Ordered: TypeAlias = int | float | date | datetime
"""A value of a column of numbers, dates or times."""

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Indices of documents in their segment, ascending, and the codes of their values; both (n,)."""


@dataclass(frozen=True, slots=True)
class DistinctValues:
    """The values of a metadata column, each replaced by a code.

    Attributes:
        values: The distinct values, ascending; the code of a value is its index.
        parts: For each segment, the documents with a value and the codes of these values. In a
            column of lists, a document has one pair for each distinct value in its list.
    """

    values: pa.Array
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
    """Read a metadata column of all documents, also of deleted ones.

    Args:
        segments: The segments of the index.
        name: The column.
        kind: Its type in the index; an older segment may have int64 where the index has float64.

    Raises:
        CorruptIndex: The column cannot be read.
    """
    import pyarrow.compute as pc  # most searches do not need it, and it imports slowly

    element = ARROW_TYPES[kind.removeprefix("list[").removesuffix("]")]
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
    """Drop pairs of a document and a code that occur more than once."""
    if len(docs) == 0 or (docs[1:] > docs[:-1]).all():
        return docs, codes
    pairs = np.unique(docs * n_values + codes)
    return pairs // n_values, pairs % n_values
