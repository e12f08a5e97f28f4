"""Plan how many rows of a Parquet file to decode at a time, by the sizes of its pages.

A reader decompresses whole pages, so a small file can need any amount of memory. The size of a page
is in the page header, which is encoded in Thrift's compact protocol, and not in the file's footer.
pyarrow does not expose the page headers, so this module parses them. It parses the footer, too:
pyarrow 26 ends the process where its `RowGroupMetaData.column` meets some damaged footers.

Source: Apache Parquet format, parquet.thrift: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData,
PageHeader; Thrift compact protocol encoding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

import pyarrow.compute as pc
import pyarrow.parquet as pq

from sbert_search.text.formats.rows import BLOCK_ROWS, RowLimit

_HEADER_BYTES = 1 << 12  # read for a header at first; headers with statistics may be longer
_MAX_HEADER_BYTES = 1 << 24
_MAX_DEPTH = 8
_WIDTHS = {1: 1, 2: 1, 3: 1, 7: 8}  # bytes of a boolean in a list, a byte and a double, by kind
_DICTIONARY_PAGE = 2


Struct: TypeAlias = "dict[int, Field]"
Field: TypeAlias = "int | Struct | list[Field] | None"  # a boolean is an int; None: another type


class Chunk(NamedTuple):
    """What the footer says of one column of a row group."""

    encodings: Sequence[Field]  # their numbers
    n_values: int
    decompressed: int  # bytes of all pages
    compressed: int
    first_page: int  # offset of the first data page in the file
    dictionary_page: int  # -1: there is none

    @classmethod
    def of(cls, column: Field) -> Chunk:
        """Make it from a ColumnChunk."""
        chunk = column.get(3) if isinstance(column, dict) else None
        if isinstance(chunk, dict) and isinstance(encodings := chunk.get(2), list):
            sizes = [_integer(chunk, number) for number in (5, 6, 7, 9, 11)]
            if min(sizes[:4]) >= 0:
                return cls(encodings, *sizes)
        raise ValueError("its footer does not describe a column")


def read_footer(path: Path, metadata: pq.FileMetaData) -> list[list[Chunk]]:
    """Read the columns of each row group; a damaged footer raises a ValueError."""
    with path.open("rb") as stream:
        stream.seek(-8, os.SEEK_END)  # the length of the footer, and "PAR1"
        n_bytes = int.from_bytes(stream.read(4), "little")
        stream.seek(-8 - n_bytes, os.SEEK_END)
        data = stream.read(n_bytes)
    try:
        groups = _Thrift(data).struct().get(4)
    except IndexError as error:
        raise ValueError("its footer is cut off") from error
    chunks = []
    for group in groups if isinstance(groups, list) else ():
        columns = group.get(1) if isinstance(group, dict) else None
        chunks.append([Chunk.of(col) for col in columns] if isinstance(columns, list) else [])
    if [len(of_group) for of_group in chunks] != metadata.num_row_groups * [metadata.num_columns]:
        raise ValueError("its footer does not describe its columns")
    return chunks


@dataclass(frozen=True, slots=True)
class ColumnPages:
    """The pages of one column of a row group."""

    largest: int  # decompressed bytes of the largest data page
    widest: int  # mean decompressed bytes of a value in the data page where this mean is largest
    dictionary: int  # decompressed bytes of the dictionary page; 0: there is none

    @classmethod
    def read(cls, stream: BinaryIO, chunk: Chunk) -> ColumnPages:
        """Read the headers of all pages; a damaged header raises a ValueError."""
        largest = widest = dictionary = 0
        # Fields of PageHeader: 1 type, 2 uncompressed size, 3 compressed size, 5 data page header,
        # 8 data page header v2; field 1 of the latter two is the number of values.
        for header in _headers(stream, chunk):
            size = _integer(header, 2)
            if header[1] == _DICTIONARY_PAGE:
                dictionary = max(dictionary, size)
                continue
            data_header = header.get(5, header.get(8))
            n_values = _integer(data_header, 1) if isinstance(data_header, dict) else 0
            largest = max(largest, size)
            widest = max(widest, size // max(1, n_values))
        return cls(largest, widest, dictionary)


def _headers(stream: BinaryIO, chunk: Chunk) -> Iterator[Struct]:
    first = chunk.first_page
    if 0 < chunk.dictionary_page < first:
        first = chunk.dictionary_page
    at, end = first, first + chunk.compressed
    while at < end:
        header, size = _header(stream, at)
        yield header
        at += size + _integer(header, 3)


def _header(stream: BinaryIO, at: int) -> tuple[Struct, int]:
    """Read the page header at an offset; return it with its length in bytes."""
    n_bytes = _HEADER_BYTES
    while True:
        stream.seek(at)
        data = stream.read(n_bytes)
        reader = _Thrift(data)
        try:
            header = reader.struct()
        except IndexError:
            if len(data) < n_bytes or n_bytes >= _MAX_HEADER_BYTES:
                raise ValueError(f"a page header at byte {at} is cut off") from None
            n_bytes *= 16
            continue
        if min(_integer(header, number) for number in (1, 2, 3)) < 0:
            raise ValueError(f"there is no page header at byte {at}")
        return header, reader.at


def _integer(header: Struct, number: int) -> int:
    """Return an integer field of a header by its number; -1 if there is none."""
    value = header.get(number)
    return value if isinstance(value, int) else -1


class _Thrift:
    """Reads a struct from bytes; beyond their end, it raises an IndexError.

    Only booleans, integers, structs and lists of these are kept; other values become None.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def struct(self, depth: int = 0) -> Struct:
        """Return the values of a struct by field number."""
        _check_depth(depth)
        fields: Struct = {}
        number = 0
        while byte := self._byte():
            number = number + (byte >> 4) if byte >> 4 else self._zigzag()
            fields[number] = self._value(byte & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Field:
        match kind:
            case 1 | 2:  # true, false
                return kind == 1
            case 3:  # byte
                return self._byte()
            case 4 | 5 | 6:  # integers of 16, 32 and 64 bits
                return self._zigzag()
            case 7:  # double
                self.at += 8
            case 8:  # bytes
                size = self._varint()
                self.at += size
            case 9 | 10:  # list, set
                return self._list(depth)
            case 12:
                return self.struct(depth + 1)
            case _:
                raise ValueError(f"a page header with a field of type {kind}")
        return None

    def _list(self, depth: int) -> list[Field] | None:
        _check_depth(depth)
        byte = self._byte()
        kind = byte & 15
        size = self._varint() if byte >> 4 == 15 else byte >> 4
        if width := _WIDTHS.get(kind):  # no loop, since a damaged size may be 2**63
            self.at += size * width
            return None
        return [self._value(kind, depth + 1) for _ in range(size)]

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a page header with a number beyond 64 bits")


def _check_depth(depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError("a page header nested too deep")


BUFFER_BYTES = 1 << 20  # bytes read from the file at a time, for each column

# Minimum bytes of a decoded value by its physical Parquet type. For FIXED_LEN_BYTE_ARRAY the schema
# of the file has the width.
_VALUE_WIDTHS = {
    "BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 1
}  # fmt: skip
# Number of DELTA_BYTE_ARRAY. In this encoding a few bytes can repeat a long previous value.
_REPEATING = 7


def plan_group(
    file: pq.ParquetFile, path: Path, group: int, chunks: Sequence[Chunk], limit: RowLimit
) -> int:
    """Return how many rows to decode at a time; `BadRow` if the group takes too much memory."""
    n_rows = file.metadata.row_group(group).num_rows
    # ``needed``: memory for reading: buffers, pages, and all values of columns with lists.
    # ``row_bytes``: memory of one decoded row. ``largest``: size of the largest page.
    needed = row_bytes = largest = 0
    with path.open("rb") as stream:
        for number, chunk in enumerate(chunks):
            column = file.schema.column(number)
            pages = ColumnPages.read(stream, chunk)
            largest = max(largest, pages.largest, pages.dictionary)
            needed += min(BUFFER_BYTES, chunk.compressed)
            needed += 2 * pages.largest + 3 * pages.dictionary
            limit.check_pages(needed, largest)
            width = _VALUE_WIDTHS.get(column.physical_type) or column.length
            longest = _longest_value(path, group, column, chunk, pages, limit)
            value_bytes = max(width, longest)
            row_bytes += value_bytes * max(1, -(-chunk.n_values // max(1, n_rows)))
            if column.max_repetition_level:
                needed += max(chunk.decompressed, value_bytes * chunk.n_values)
                limit.check_pages(needed, largest)
    return max(1, min(BLOCK_ROWS, limit.block_bytes // max(1, row_bytes)))


def _longest_value(
    path: Path,
    group: int,
    column: pq.ColumnSchema,
    chunk: Chunk,
    pages: ColumnPages,
    limit: RowLimit,
) -> int:
    """Return the bytes to count for one decoded value of a column.

    Where an encoding can repeat a long value in a few bytes, this is an upper bound of the longest
    value. Otherwise it is the mean size of a value in the page where this mean is largest.
    """
    if column.physical_type != "BYTE_ARRAY":  # all values have one width, which `plan_group` knows
        return pages.widest
    if _REPEATING in chunk.encodings:
        return pages.largest
    if pages.dictionary * BLOCK_ROWS <= limit.block_bytes:
        return max(pages.widest, pages.dictionary)
    return max(pages.widest, _longest_in_dictionary(path, group, column.path, pages))


def _longest_in_dictionary(path: Path, group: int, name: str, pages: ColumnPages) -> int:
    """Return the bytes of the longest value of a dictionary; every row may have it."""
    if "." in name:
        return pages.dictionary
    with pq.ParquetFile(path, read_dictionary=[name], buffer_size=BUFFER_BYTES) as file:
        batches = file.iter_batches(1, row_groups=[group], columns=[name], use_threads=False)
        batch = next(batches, None)  # None: the pages of a damaged file state no values
    column = None if batch is None else batch.column(0)
    if column is None or not hasattr(column, "dictionary"):
        return pages.dictionary
    return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
