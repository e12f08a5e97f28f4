"""Read Parquet, Arrow IPC (file and stream) and Feather files, in blocks of rows.

A row that cannot be used is yielded as a `Reject` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sbert_search.corpus.formats.arrow_sizes import row_bytes
from sbert_search.corpus.formats.arrow_values import first_line, readable
from sbert_search.corpus.formats.limits import NO_BUDGET, RowLimit
from sbert_search.corpus.formats.parquet_groups import plan_group
from sbert_search.corpus.formats.rows import BadRow, RawRow, Reject

BLOCK_ROWS = 1024  # maximum number of rows converted to Python values at a time

MAX_GROUP_ROWS = 1 << 31  # a Parquet footer with more rows in a group counts as damaged

_DAMAGE = (OSError, MemoryError, ValueError, pa.ArrowException)


def read_parquet(
    path: Path, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield the rows of a Parquet file, after the first ``skip`` rows.

    A row group with only skipped rows is not read. If a row group is damaged or needs too much
    memory, its first row that cannot be decoded and each later row of the group are yielded as one
    reject each, so that every row is counted. A file with an unreadable footer, or with two columns
    of the same name, is yielded as one reject.
    """
    try:
        file = pq.ParquetFile(path, buffer_size=1 << 20, page_checksum_verification=True)
        group_rows = _group_rows(file.metadata)
        repeated = repeated_name(file.schema_arrow.names)
    except _DAMAGE as error:
        yield Reject(shown, f"damaged Parquet file: {first_line(error)}")
        return
    if repeated is not None:
        yield Reject(shown, f"two columns have the name {repeated!r}; rename one")
        return
    with file:
        first = 0
        for group, n_rows in enumerate(group_rows):
            if first + n_rows > skip:
                rows = _read_group(file, path, group, n_rows, limit)
                prefix = f"{shown}:row group {group + 1}:row"
                yield from _with_source(rows, prefix, first, skip - first)
            first += n_rows


def repeated_name(names: Sequence[str]) -> str | None:
    """Return the first name that another column has too; None if all names differ."""
    return next((name for n, name in enumerate(names) if name in names[:n]), None)


def _group_rows(metadata: pq.FileMetaData) -> list[int]:
    counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if sum(counts) != metadata.num_rows or not all(0 <= n <= MAX_GROUP_ROWS for n in counts):
        raise ValueError("its footer has inconsistent numbers of rows")
    return counts


def _read_group(
    file: pq.ParquetFile, path: Path, group: int, n_rows: int, limit: RowLimit
) -> Iterator[dict[str, object] | BadRow]:
    row = 0
    try:
        block = plan_group(file, path, group, limit)
        for batch in file.iter_batches(block, row_groups=[group], use_threads=False):
            for values in rows_of_batch(batch, limit):
                row += 1
                yield values
        problem = "damaged row group: it ends early"
    except BadRow as bad:
        problem = bad.reason
    except _DAMAGE as error:
        problem = f"damaged row group: {first_line(error)}"
    for _ in range(row, n_rows):
        yield BadRow(problem)


def _with_source(
    rows: Iterable[dict[str, object] | BadRow], prefix: str, first: int, skip: int
) -> Iterator[RawRow | Reject]:
    """Yield the rows after the first ``skip`` rows, each with its position in the file.

    Args:
        rows: The rows of one row group or record batch.
        prefix: Position of this group or batch, to which the number of the row is added.
        first: Number of rows of the file before this group or batch.
        skip: Number of rows to leave out; 0 and negative numbers leave out no row.
    """
    for row, values in enumerate(rows, start=1):
        if row > skip:
            source = f"{prefix} {row}"
            if isinstance(values, BadRow):
                yield values.at(source)
            else:
                yield RawRow(source, first + row, values)


def read_arrow(
    path: Path, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield the rows of an Arrow IPC file or stream, or of a Feather file (version 2).

    These formats store rows in blocks, the record batches. If a batch is damaged, its rows before
    the damage and all earlier batches are yielded, and one reject stands for the rest of the file.
    A file in which two columns have the same name is yielded as one reject.
    """
    number, index = 0, 0
    try:
        for index, batch in enumerate(_record_batches(path), start=1):
            if (repeated := repeated_name(batch.schema.names)) is not None:
                yield Reject(shown, f"two columns have the name {repeated!r}; rename one")
                return
            if number + batch.num_rows > skip:
                rows = rows_of_batch(batch, limit)
                prefix = f"{shown}:batch {index}:row"
                yield from _with_source(rows, prefix, number, skip - number)
            number += batch.num_rows
    except _DAMAGE as error:
        if index == 0:
            yield Reject(shown, f"cannot be read as an Arrow file: {first_line(error)}")
            return
        reason = f"damaged in or after this batch; the rest is lost: {first_line(error)}"
        yield Reject(f"{shown}:batch {index}", reason)


def _record_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a memory-mapped file, with validated offsets.

    An invalid offset would make pyarrow read outside a column's buffer.
    """
    with pa.memory_map(str(path)) as source:
        magic = source.read(6)
        source.seek(0)
        if magic.startswith(b"FEA1"):
            raise ValueError("Feather version 1; write it again as version 2")
        if magic == b"ARROW1":
            file = pa.ipc.open_file(source)
            batches = map(file.get_batch, range(file.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(source))
        for batch in batches:
            for column in batch.columns:
                # Validating text as bytes checks the offsets, but not the UTF-8. Text that is not
                # UTF-8 is found later, so that it rejects only its row.
                kind = _as_bytes(column.type)
                (column if kind == column.type else column.view(kind)).validate(full=True)
            yield batch


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type with bytes in place of text, also inside of lists and structs."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_bytes(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_as_bytes(kind.value_type)))
    return _BYTES.get(kind, kind)


_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


def rows_of_batch(batch: pa.RecordBatch, limit: RowLimit) -> Iterator[dict[str, object] | BadRow]:
    """Yield the rows of a batch, converted in blocks of at most ``limit.block_bytes`` bytes.

    A block has at most `BLOCK_ROWS` rows; a row larger than ``block_bytes`` is a block of its own.
    A row larger than ``limit.n_bytes``, or with a value that cannot be converted, is yielded as a
    `BadRow`.
    """
    sizes = row_bytes(batch, held=limit.budget is not None)
    ends = np.cumsum(sizes)
    start = 0
    while start < batch.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + limit.block_bytes, "right"))
        stop = max(start + 1, min(start + BLOCK_ROWS, stop))
        try:
            limit.check(int(sizes[start:stop].max()))
        except BadRow as bad:
            # End the block before the first row over the limit. If the block begins with that row,
            # reject the row instead.
            stop = start + max(1, int(np.argmax(sizes[start:stop] > limit.n_bytes)))
            if sizes[start] > limit.n_bytes:
                yield bad
                start += 1
                continue
        yield from _rows_of_block(batch.slice(start, stop - start))
        start = stop


def _rows_of_block(batch: pa.RecordBatch) -> Iterator[dict[str, object] | BadRow]:
    names = batch.schema.names
    bad: dict[int, BadRow] = {}
    columns = [
        readable(column, name, 0, bad) for name, column in zip(names, batch.columns, strict=True)
    ]
    for row, values in enumerate(zip(*columns, strict=True)):
        yield bad.get(row) or dict(zip(names, values, strict=True))
