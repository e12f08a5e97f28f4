"""Read Parquet, Arrow IPC (file and stream) and Feather files, in blocks of rows.

A row that cannot be used is yielded as a `Reject` with the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sbert_search.text.formats.parquet import Chunk, plan_group, read_footer
from sbert_search.text.formats.rows import (
    BLOCK_ROWS,
    NO_BUDGET,
    BadRow,
    RawRow,
    Reject,
    RowLimit,
    raw_rows,
    repeated_name,
)

# Memory of a small Python value with the reference to it, and of an empty dict, in bytes.
_VALUE_BYTES, _DICT_BYTES = 64, 232

Sizes = NDArray[np.int64]


def row_bytes(batch: pa.RecordBatch, *, held: bool) -> Sizes:
    """Return the estimated bytes of each row, int64 (n_rows,).

    ``held``: count text as Python strings, not as UTF-8 in the file. The offsets in the columns
    must be valid, since they are used as indices.
    """
    sizes = (_sizes(column, held) for column in batch.columns)
    return sum(sizes, np.zeros(batch.num_rows, np.int64))


def _sizes(column: pa.Array, held: bool) -> Sizes:
    kind, types = column.type, pa.types
    if isinstance(column, pa.ExtensionArray):
        return _sizes(column.storage, held)
    if types.is_dictionary(kind):
        return _picked(_sizes(column.dictionary, held), _integers(column.indices))
    if types.is_run_end_encoded(kind):
        rows = np.arange(column.offset, column.offset + len(column))
        runs = np.searchsorted(_integers(column.run_ends), rows, "right").astype(np.int64)
        return _picked(_sizes(column.values, held), runs)
    if types.is_struct(kind):
        fields = [_sizes(column.field(i), held) for i in range(kind.num_fields)]
        return sum(fields, np.full(len(column), _DICT_BYTES, np.int64))
    if types.is_nested(kind):
        return _sizes_of_lists(column, held)
    sizes = np.full(len(column), _VALUE_BYTES, np.int64)
    if types.is_fixed_size_binary(kind):
        return sizes + (4 if held else 1) * int(kind.byte_width)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # Each value is a view of 16 bytes, whose first 4 bytes are the length of the value. pyarrow
        # has no function that returns these lengths.
        lengths = np.frombuffer(column.buffers()[1], "<i4")[::4].astype(np.int64)
        return sizes + (4 if held else 1) * lengths[column.offset : column.offset + len(column)]
    if types.is_string(kind) or types.is_large_string(kind):
        wide = held and not pc.all(pc.string_is_ascii(column), min_count=0).as_py()
        return sizes + (4 if wide else 1) * _integers(pc.binary_length(column))
    if types.is_binary(kind) or types.is_large_binary(kind):
        return sizes + (4 if held else 1) * _integers(pc.binary_length(column))
    return sizes


def _sizes_of_lists(column: pa.Array, held: bool) -> Sizes:
    kind, types = column.type, pa.types
    own = np.full(len(column), _VALUE_BYTES, np.int64)
    if types.is_map(kind):
        values = 2 * _VALUE_BYTES + _sizes(column.keys, held) + _sizes(column.items, held)
    elif types.is_union(kind):
        return own + int(column.nbytes)
    else:
        values = _sizes(column.values, held)
    ends: Sizes = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    if types.is_fixed_size_list(kind):
        starts = int(kind.list_size) * np.arange(column.offset, column.offset + len(column) + 1)
        own += np.diff(ends[starts])
    elif types.is_list_view(kind) or types.is_large_list_view(kind):
        starts = _integers(column.offsets)
        own += ends[starts + _integers(column.sizes)] - ends[starts]
    else:
        own += np.diff(ends[_integers(column.offsets)])
    return own


def _picked(sizes: Sizes, indices: Sizes) -> Sizes:
    """Return the sizes at the indices; a null has the index 0 and counts as the first value."""
    if not len(sizes):  # all indices stand for nulls, and a null counts as one small value
        return np.full(len(indices), _VALUE_BYTES, np.int64)
    # The Parquet reader of pyarrow does not compare the indices with the dictionary.
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(sizes):
        raise ValueError("an index beyond the dictionary")
    return sizes[indices]


def _integers(column: pa.Array) -> Sizes:
    """Return a column of integers as an int64 array, with 0 for null."""
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def readable(column: pa.Array, name: str, first: int, bad: dict[int, BadRow]) -> list[object]:
    """Convert a column to Python values; rows that cannot be converted are added to ``bad``.

    These have dates, times and durations that Python cannot represent, or text in a struct, a map
    or a list view that is not UTF-8. Halving the column finds them without converting each row
    separately. ``first`` is the index of the column's first row in the block, as in ``bad``.
    """
    try:
        return _values(column)
    except (ValueError, OverflowError) as error:
        if len(column) == 1:
            bad[first] = BadRow(f"column {name!r} cannot be read: {_first_line(error)}")
            return [None]
        half = len(column) // 2
        head = readable(column.slice(0, half), name, first, bad)
        return head + readable(column.slice(half), name, first + half, bad)


def _values(column: pa.Array) -> list[object]:
    """Convert a column to Python values.

    Timestamps become UTC times in microseconds; a timestamp without a time zone is taken as UTC.
    Decimals become floats, times of day and UUIDs become text, bytes are decoded as UTF-8 text, and
    NaN becomes None. The items of lists are converted likewise, but not those of list views, and
    not the values in structs, maps or run-end encoded columns.
    """
    if isinstance(column.type, pa.UuidType):
        return [None if value is None else str(value) for value in column.to_pylist()]
    if isinstance(column, pa.ExtensionArray):
        return _values(column.storage)
    if pa.types.is_dictionary(column.type):
        return _values(_without_views(column).dictionary_decode())
    if _is_list(column.type):
        return _lists(column)
    for is_kind, target in _CASTS:
        if is_kind(column.type):
            column = column.cast(target, safe=_may_overflow(column.type))
    if pa.types.is_floating(column.type):
        values = column.to_pylist()
        return [None if value is None or math.isnan(value) else value for value in values]
    if pa.types.is_large_binary(column.type) or pa.types.is_binary_view(column.type):
        return [_text(value) for value in column.to_pylist()]
    return _plain(column)


def _plain(column: pa.Array) -> list[object]:
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        if pa.types.is_nested(column.type):  # it cannot be cast; `readable` rejects the row
            raise
        return _values(column.cast(pa.large_binary()))


def _without_views(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """Replace string or binary views in a dictionary, which pyarrow 26 cannot decode."""
    kind = column.type.value_type
    if pa.types.is_string_view(kind):
        kind = pa.large_string()
    elif pa.types.is_binary_view(kind):
        kind = pa.large_binary()
    return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(kind))


def _is_list(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(kind) for is_kind in kinds)


def _lists(column: pa.Array) -> list[object]:
    """Convert a column of lists; `_values` converts the items of all lists as one column."""
    if pa.types.is_fixed_size_list(column.type):  # it has no offsets
        column = column.cast(pa.list_(column.type.value_type))
    ends = column.offsets.to_pylist()
    first, valid = ends[0], column.is_valid().to_pylist()
    items = _values(column.values.slice(first, ends[-1] - first))
    return [
        items[start - first : end - first] if is_valid else None
        for start, end, is_valid in zip(ends, ends[1:], valid, strict=False)
    ]


_CASTS: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pa.types.is_timestamp, pa.timestamp("us", "UTC")),
    (pa.types.is_decimal, pa.float64()),
    (pa.types.is_time, pa.string()),
    (pa.types.is_binary, pa.large_binary()),
    (pa.types.is_fixed_size_binary, pa.large_binary()),
)


def _may_overflow(kind: pa.DataType) -> bool:
    """Whether the cast of a type in `_CASTS` can overflow; only such casts are checked.

    A checked cast from nanoseconds to microseconds would fail wherever digits are lost.
    """
    return pa.types.is_timestamp(kind) and kind.unit in ("s", "ms")


def _text(value: bytes | None) -> str | None:
    """Decode UTF-8; invalid bytes become lone surrogates, and `check_text` rejects their row."""
    return None if value is None else value.decode("utf-8", "surrogateescape")


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message; if that is empty, the type of the error."""
    return (str(error).splitlines() or [type(error).__name__])[0]


_MAX_GROUP_ROWS = 1 << 31  # a Parquet footer with more rows in a group counts as damaged

_DAMAGE = (OSError, MemoryError, ValueError, pa.ArrowException)


def read_parquet(
    path: Path, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield the rows of a Parquet file, after the first ``skip`` rows.

    If a row group is damaged or needs too much memory, its first row that cannot be decoded and
    each later row of the group are yielded as one reject each, so that every row is counted. A file
    with an unreadable footer, or with two columns of the same name, is one reject.
    """
    try:
        file = pq.ParquetFile(path, buffer_size=1 << 20, page_checksum_verification=True)
        chunks = read_footer(path, file.metadata)
        group_rows = _group_rows(file.metadata)
        repeated = repeated_name(file.schema_arrow.names)
    except _DAMAGE as error:
        yield Reject(shown, f"damaged Parquet file: {_first_line(error)}")
        return
    if repeated is not None:
        yield Reject(shown, f"two columns have the name {repeated!r}; rename one")
        return
    with file:
        first = 0
        for group, n_rows in enumerate(group_rows):
            if first + n_rows > skip:
                rows = _read_group(file, path, group, chunks[group], n_rows, limit)
                place = f"{shown}:row group {group + 1}"
                yield from _raw_rows(rows, place, first, skip, class_names(file.schema_arrow))
            first += n_rows


def _group_rows(metadata: pq.FileMetaData) -> list[int]:
    counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if sum(counts) != metadata.num_rows or not all(0 <= n <= _MAX_GROUP_ROWS for n in counts):
        raise ValueError("its footer has inconsistent numbers of rows")
    return counts


def _read_group(
    file: pq.ParquetFile,
    path: Path,
    group: int,
    chunks: Sequence[Chunk],
    n_rows: int,
    limit: RowLimit,
) -> Iterator[dict[str, object] | BadRow]:
    row = 0
    try:
        block = plan_group(file, path, group, chunks, limit)
        for batch in file.iter_batches(block, row_groups=[group], use_threads=False):
            for values in rows_of_batch(batch, limit):
                row += 1
                yield values
        problem = "damaged row group: it ends early"
    except BadRow as bad:
        problem = bad.reason
    except _DAMAGE as error:
        problem = f"damaged row group: {_first_line(error)}"
    for _ in range(row, n_rows):
        yield BadRow(problem)


def _raw_rows(
    rows: Iterable[dict[str, object] | BadRow],
    part: str,
    before: int,
    skip: int,
    classes: Mapping[str, Sequence[str]],
) -> Iterator[RawRow | Reject]:
    """Yield the rows of a part of a file that has rows ``before``; ``skip`` counts those too."""
    numbered, left, place = enumerate(rows, start=1), max(0, skip - before), f"{part}:row "
    return raw_rows(numbered, place, lambda values: values, left, before=before, classes=classes)


def class_names(schema: pa.Schema) -> Mapping[str, Sequence[str]]:
    """Return the names of the classes of each ClassLabel column of a Hugging Face dataset.

    Their values, or those of their lists, are numbers of classes from 0, or -1 for no class.
    """
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        own = {name: feature.get("feature", feature) for name, feature in features.items()}
        return {name: list(map(str, one["names"])) for name, one in own.items() if "names" in one}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}


def read_arrow(
    path: Path, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield the rows of an Arrow IPC file or stream, or of a Feather file (version 2).

    If a record batch is damaged, its rows before the damage are yielded, and one reject stands for
    the rest of the file. A file in which two columns have the same name is one reject.
    """
    number, index = 0, 0
    try:
        for index, batch in enumerate(_record_batches(path), start=1):
            if (repeated := repeated_name(batch.schema.names)) is not None:
                yield Reject(shown, f"two columns have the name {repeated!r}; rename one")
                return
            if number + batch.num_rows > skip:
                rows = rows_of_batch(batch, limit)
                place, classes = f"{shown}:batch {index}", class_names(batch.schema)
                yield from _raw_rows(rows, place, number, skip, classes)
            number += batch.num_rows
    except _DAMAGE as error:
        if index == 0:
            yield Reject(shown, f"cannot be read as an Arrow file: {_first_line(error)}")
            return
        reason = f"damaged in or after this batch; the rest is lost: {_first_line(error)}"
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

    A row above the limit, or with a value that cannot be converted, is yielded as a `BadRow`.
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
