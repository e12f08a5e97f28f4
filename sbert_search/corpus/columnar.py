"""Parquet, Arrow IPC (file and stream) and Feather: typed columns, read block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sbert_search.corpus.rows import RawRow, Reject

BLOCK_ROWS = 1024


def read_parquet(path: Path, shown: str, *, skip: int = 0) -> Iterator[RawRow | Reject]:
    """Yield the rows of a Parquet file; whole row groups are skipped unread.

    Rows of a damaged row group are rejected one by one, so that every row is counted; a file whose
    footer cannot be read is one reject.
    """
    try:
        file = pq.ParquetFile(path, buffer_size=1 << 20)
    except (OSError, pa.ArrowException) as error:
        yield Reject(shown, f"damaged Parquet file: {_first_line(error)}")
        return
    with file:
        first = 0
        for group in range(file.num_row_groups):
            n_rows = file.metadata.row_group(group).num_rows
            if first + n_rows > skip:
                yield from _read_group(file, group, n_rows, shown, first, max(0, skip - first))
            first += n_rows


def _read_group(
    file: pq.ParquetFile, group: int, n_rows: int, shown: str, first: int, skip: int
) -> Iterator[RawRow | Reject]:
    place, done = f"{shown}:row group {group + 1}:row", 0
    try:
        for batch in file.iter_batches(BLOCK_ROWS, row_groups=[group]):
            for values in _rows_of(batch):
                done += 1
                if done > skip:
                    yield RawRow(f"{place} {done}", first + done, values)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        for row in range(max(done, skip) + 1, n_rows + 1):
            yield Reject(f"{place} {row}", f"damaged row group: {_first_line(error)}")


def read_arrow(path: Path, shown: str, *, skip: int = 0) -> Iterator[RawRow | Reject]:
    """Yield the rows of an Arrow IPC file or stream, or of a Feather file (version 2).

    Damage ends the file in one reject; the batches before it are kept.
    """
    number = 0
    try:
        for place, batch in enumerate(_record_batches(path), start=1):
            for row, values in enumerate(_rows_of(batch), start=1):
                number += 1
                if number > skip:
                    yield RawRow(f"{shown}:batch {place}:row {row}", number, values)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        yield Reject(
            f"{shown}:row {number + 1}", f"damaged here, the rest is lost: {_first_line(error)}"
        )


def _record_batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        if source.read(6) == b"ARROW1":
            file = pa.ipc.open_file(source)
            for place in range(file.num_record_batches):
                yield file.get_batch(place)
        else:
            source.seek(0)
            yield from pa.ipc.open_stream(source)


def _rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    batch.validate(full=True)
    names = batch.schema.names
    for start in range(0, batch.num_rows, BLOCK_ROWS):
        columns = [_values(column) for column in batch.slice(start, BLOCK_ROWS).columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def _values(column: pa.Array) -> list[Any]:
    """Turn a column into Python values: times to microseconds in UTC, decimals to floats."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _values(column.dictionary_decode())
    if pa.types.is_timestamp(kind):
        return list(column.cast(pa.timestamp("us"), safe=False).to_pylist())
    if pa.types.is_date64(kind):
        return list(column.cast(pa.date32()).to_pylist())
    if pa.types.is_decimal(kind):
        return list(column.cast(pa.float64()).to_pylist())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_floating(kind):
        return [
            None if value is None or math.isnan(value) else value for value in column.to_pylist()
        ]
    return list(column.to_pylist())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
