"""Write rows from memory or a database to a temporary file, and read this file as a source.

The file is a sequence of blocks. A block begins with two little-endian int64: the number of its
rows, and the size in bytes of the Arrow stream that follows. The stream has one record batch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from sbert_search.errors import CorpusError
from sbert_search.text.formats.columnar import class_names, rows_of_batch
from sbert_search.text.formats.rows import BLOCK_ROWS, NO_BUDGET, RawRow, Reject, RowLimit, raw_rows

BLOCK_CHARS = 1 << 22  # `write_rows` ends a block once its values reach about this size (`_size`)

_HEADER = struct.Struct("<qq")
# Name of a column for the fields that cannot be Arrow columns of their own: fields of objects,
# numpy arrays or lists of lists, and fields with values of several types. The column has one JSON
# object per row. The name is a NUL character, which the name of a field may not contain.
_REST = "\0"
# In this JSON object, a date or time is an object with only this key. So its type can be restored.
_TIME = "\0time"

Rows = Iterable[Mapping[str, object]]


def write_rows(
    file: BinaryIO,
    rows: Rows,
    shown: str,
    advance: Callable[[int], None],
    vector: str | None = None,
) -> None:
    """Write mappings from field name to value, which are read once.

    ``advance`` gets the number of rows of each block. ``vector`` is the field of vectors, which are
    written as Arrow lists.
    """
    first, n_chars, block = 1, 0, list[Mapping[str, object]]()
    for row in rows:
        if not isinstance(row, Mapping):
            raise CorpusError(
                f"{shown}:{first + len(block)}: a row must be a dict or a Document, not of type "
                f"{type(row).__name__}. To index a list of texts, use `Index.from_texts`."
            )
        block.append(row)
        try:
            n_chars += _size(row)
        except RecursionError:
            raise CorpusError(f"{shown}:{first + len(block) - 1}: nested too deep.") from None
        if len(block) == BLOCK_ROWS or n_chars >= BLOCK_CHARS:
            _write_block(file, _to_batch(block, shown, first, vector))
            advance(len(block))
            first, n_chars, block = first + len(block), 0, []
    if block:
        _write_block(file, _to_batch(block, shown, first, vector))
        advance(len(block))


def write_batches(
    file: BinaryIO, batches: Iterable[pa.RecordBatch], advance: Callable[[int], None]
) -> None:
    """Write record batches, such as those of a data frame."""
    for batch in batches:
        for start in range(0, batch.num_rows, BLOCK_ROWS):
            block = batch.slice(start, BLOCK_ROWS)
            _write_block(file, block)
            advance(block.num_rows)


def read_spooled(
    path: Path, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield the rows of a file that this module wrote, after the first ``skip`` rows."""
    number = 0
    with path.open("rb") as file:
        while header := file.read(_HEADER.size):
            n_rows, n_bytes = _HEADER.unpack(header)
            if number + n_rows <= skip:
                file.seek(n_bytes, 1)
            else:
                batch = pa.ipc.open_stream(file.read(n_bytes)).read_next_batch()
                rows = enumerate(rows_of_batch(batch, limit), start=number + 1)
                classes, left = class_names(batch.schema), max(0, skip - number)
                yield from raw_rows(rows, f"{shown}:", _with_rest, left, classes=classes)
            number += n_rows


def _with_rest(values: dict[str, object]) -> dict[str, object]:
    """Return a row with the fields that the column `_REST` holds as JSON."""
    rest = values.pop(_REST, None)
    if isinstance(rest, str):
        values |= {name: _restored(value) for name, value in json.loads(rest).items()}
    return values


def _restored(value: object) -> object:
    if not isinstance(value, dict) or value.keys() != {_TIME}:
        return value
    text = value[_TIME]
    return datetime.fromisoformat(text) if "T" in text else date.fromisoformat(text)


def _write_block(file: BinaryIO, batch: pa.RecordBatch) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data = sink.getvalue()
    file.write(_HEADER.pack(batch.num_rows, data.size))
    file.write(data)


def _to_batch(
    rows: list[Mapping[str, object]], shown: str, first: int, vector: str | None
) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {}
    others = []
    for name in dict.fromkeys(chain.from_iterable(rows)):
        if not isinstance(name, str):
            number = first + next(n for n, row in enumerate(rows) if name in row)
            raise CorpusError(
                f"{shown}:{number}: the name of a field is {name!r}; it must be a string."
            )
        values = [_value(row.get(name)) for row in rows]
        column = _vectors(values) if name == vector else None
        column = _column(values) if column is None else column
        if column is None:
            others.append(name)
        else:
            columns[name] = column
    if others or not columns:  # without a column, a batch would have no rows
        rest = (_to_json(row, others, f"{shown}:{first + n}") for n, row in enumerate(rows))
        columns[_REST] = pa.array(rest, pa.large_string())
    return pa.RecordBatch.from_pydict(columns)


def _vectors(values: list[object]) -> pa.Array | None:
    """Return the values as an Arrow array of float lists; None if they are not all vectors."""
    if not all(isinstance(value, (list, np.ndarray, type(None))) for value in values):
        return None
    column = _array(values)
    if column is None or not pa.types.is_list(column.type):
        return None
    return column if pa.types.is_floating(column.type.value_type) else None


def _column(values: list[object]) -> pa.Array | None:
    """Return the values of a field as an Arrow array; None if `_REST` must hold them."""
    # pyarrow itself would convert some mixtures: an integer beside a date becomes a date.
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {list}:
        kinds = {type(v) for items in values if isinstance(items, list) for v in items}
        kinds -= {type(None)}
    column = None if len(kinds) > 1 or np.ndarray in kinds else _array(values)
    if column is None:
        return None
    nested = column.type.value_type if pa.types.is_list(column.type) else column.type
    return None if pa.types.is_nested(nested) else column


def _array(values: list[object]) -> pa.Array | None:
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _to_json(row: Mapping[str, object], names: Iterable[str], source: str) -> str:
    values = {name: value for name in names if (value := _value(row.get(name))) is not None}
    times = {
        n: {_TIME: value.isoformat()} for n, value in values.items() if isinstance(value, date)
    }
    try:
        return json.dumps(
            values | times,
            default=_plain,
            # A lone surrogate becomes an escape. So only its own row is rejected when it is read.
            ensure_ascii=True,
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise CorpusError(
            f"{source}: a value of {', '.join(map(repr, values))} cannot be stored: {error}. "
            "Convert it to text or a number."
        ) from error


def _value(value: object) -> object:
    """Return a value to write: None for a missing one; dates and times as those of Python.

    Times are cut to microseconds, so that a field with times of several libraries has one type.
    """
    if _is_missing(value):
        return None
    if isinstance(value, np.datetime64):
        has_time = np.datetime_data(value)[0] not in ("Y", "M", "W", "D")
        time = value.astype("datetime64[us]" if has_time else "datetime64[D]").item()
        return time if isinstance(time, date) else str(value)  # text for a year outside 1 to 9999
    if isinstance(value, datetime) and type(value) is not datetime:
        return datetime.combine(value.date(), value.timetz())
    return value


def _is_missing(value: object) -> bool:
    """Whether a value is NaN, `pandas.NA` or `pandas.NaT`; pandas may not be installed."""
    if type(value).__name__ == "NAType":
        return True
    return isinstance(value, (float, date, np.generic)) and bool(value != value)


def _size(value: object) -> int:
    """Return about how many bytes or, in text, characters a value has."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (int, float)):  # a vector: do not look at each number
            return 8 * len(value)
        return sum(map(_size, value))
    return 8


def _plain(value: object) -> object:
    """Convert a value of a type that `json` cannot write."""
    if isinstance(value, bytes):  # lone surrogates for invalid UTF-8 reject only their row
        return value.decode("utf-8", "surrogateescape")
    if _is_missing(value):
        return None
    if isinstance(value, date):  # or its subclass datetime
        return value.isoformat()
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"it is of type {type(value).__name__}")
