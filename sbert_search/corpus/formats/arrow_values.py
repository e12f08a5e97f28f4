"""Convert Arrow columns to Python values; a value that cannot be converted rejects its row."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyarrow as pa

from sbert_search.corpus.formats.rows import BadRow


def readable(column: pa.Array, name: str, first: int, bad: dict[int, BadRow]) -> list[object]:
    """Convert a column to Python values; rows that cannot be converted are added to ``bad``.

    Values that cannot be converted are dates, times and durations that Python cannot represent,
    such as a date after the year 9999, and text in a struct, a map or a list view that is not
    UTF-8. Halving the column repeatedly finds these values without converting each row separately.

    Args:
        column: The column, or a slice of it.
        name: Name of the column.
        first: Index of the first row of ``column`` in the block of rows that the caller converts.
        bad: Receives the bad rows by their index in the block.
    """
    try:
        return _values(column)
    except (ValueError, OverflowError) as error:
        if len(column) == 1:
            bad[first] = BadRow(f"column {name!r} cannot be read: {first_line(error)}")
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
    """Convert a column to the Python values that pyarrow makes of its type."""
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

    A timestamp in seconds or milliseconds can overflow in microseconds. A checked cast from
    nanoseconds to microseconds would fail wherever digits are lost, so this cast is not checked.
    """
    return pa.types.is_timestamp(kind) and kind.unit in ("s", "ms")


def _text(value: bytes | None) -> str | None:
    """Decode UTF-8; invalid bytes become lone surrogates, and `check_text` rejects their row."""
    return None if value is None else value.decode("utf-8", "surrogateescape")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; if that is empty, the type of the error."""
    return (str(error).splitlines() or [type(error).__name__])[0]
