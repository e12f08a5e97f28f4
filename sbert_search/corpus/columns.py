"""Infer the types of metadata columns from the rows, and convert the values to these types."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any, Literal

from sbert_search.corpus.formats.rows import BadRow, check_text
from sbert_search.records import MetadataValue

ColumnType = Literal["string", "int64", "float64", "bool", "timestamp", "date"]
"""Types of metadata columns; a list or an object is stored as JSON text, of type ``string``."""

MAX_COLUMNS = 1000

_TYPE_OF: Mapping[type, ColumnType] = {
    str: "string",
    int: "int64",
    float: "float64",
    bool: "bool",
    datetime: "timestamp",
    date: "date",
}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")  # no leading zeros: "007" is a code, not a number
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1
_ALL_EXACT = 1 << 53  # float64 represents all integers up to 2**53 exactly, then only some
_NUMBERS = {"int64", "float64"}


class Columns:
    """The types of the metadata columns of a source.

    - A typed value (JSON, Parquet) must fit the type of the first value in its column. An int64
      column may become float64 if that rounds no integer (docs/decisions.md, "No integer is
      rounded where a column widens").
    - CSV cells are untyped. A column of cells gets the narrowest type that fits all its cells:
      int64, float64 or bool, otherwise string.
    - A string with an ISO 8601 time fits a timestamp column, and one with an ISO 8601 date a date
      column. Times without a time zone are UTC.

    Args:
        known: Initial types, such as the column types of an existing index.
        widens: Returns whether float64 represents all stored integers of a known int64 column
            exactly. It is called with the column name before that column becomes float64.
    """

    def __init__(
        self,
        known: Mapping[str, ColumnType] | None = None,
        widens: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.types: dict[str, ColumnType] = dict(known or {})
        self._widens = widens
        self._unchecked = {  # known int64 columns for which `widens` has not been called yet
            name for name, kind in self.types.items() if kind == "int64"
        }
        self._untyped: set[str] = set()  # columns with only untyped cells so far
        self._exact_only: set[str] = set()  # columns with an integer that float64 would round

    def learn(self, metadata: Mapping[str, Any], *, typed: bool) -> None:
        """Update the column types with a row; a row that does not fit them changes nothing.

        Raises:
            BadRow: A value does not fit its column.
        """
        changed, exact_only = {}, set()
        for name, value in metadata.items():
            kind = self._type_with(name, value, typed)
            if kind != self.types.get(name):
                changed[name] = kind
            if kind == "int64" and not _exact_as_float(value):
                exact_only.add(name)
        if added := changed.keys() - self.types.keys():
            for name in added:
                check_text(name, name)
            if len(self.types) + len(added) > MAX_COLUMNS:
                raise BadRow(f"more than {MAX_COLUMNS} metadata columns", min(added))
        if typed:
            self._untyped.difference_update(metadata)
        else:
            self._untyped |= added
        self.types |= changed
        self._exact_only |= exact_only

    def convert(self, metadata: Mapping[str, Any], *, typed: bool) -> dict[str, MetadataValue]:
        """Convert the values of a row to the types of their columns.

        Raises:
            BadRow: A value does not fit its column.
        """
        if not metadata.keys() <= self.types.keys():
            # A row that `learn` accepted has only known columns. So `learn` rejected this row; call
            # it again to raise the same error.
            self.learn(metadata, typed=typed)
        values = {}
        for name, value in metadata.items():
            own = _type_of(value, name) if typed else _type_of_cell(value)
            values[name] = _as_type(value, own, self.types[name], typed, name)
        return values

    def _type_with(self, name: str, value: Any, typed: bool) -> ColumnType:
        known = self.types.get(name)
        own = _type_of(value, name) if typed else _type_of_cell(value)
        if known == own or known is None:
            return own
        if {known, own} != _NUMBERS:
            known = join_types(known, own) if name in self._untyped else known
        elif _exact_as_float(value) if own == "int64" else self._may_widen(name):
            known = "float64"
        elif name in self._untyped and not typed:
            known = "string"
        _as_type(value, own, known, typed, name)
        return known

    def _may_widen(self, name: str) -> bool:
        """Whether float64 represents all integers of a column exactly."""
        if name in self._unchecked:
            self._unchecked.discard(name)
            if not self._widens(name):
                self._exact_only.add(name)
        return name not in self._exact_only


def join_types(a: ColumnType, b: ColumnType) -> ColumnType:
    """Return the narrowest type that fits untyped cells of both types."""
    if a == b:
        return a
    return "float64" if {a, b} == _NUMBERS else "string"


def _type_of(value: Any, name: str) -> ColumnType:
    kind = _TYPE_OF.get(type(value))
    if kind is None:
        raise BadRow(
            f"column {name!r} contains a {type(value).__name__}, which no column type supports",
            value,
        )
    if kind == "float64" and not math.isfinite(value):
        raise BadRow(f"column {name!r} has a value that is not finite", value)
    if kind == "int64" and not _MIN_INT64 <= value <= _MAX_INT64:
        raise BadRow(f"column {name!r} has an integer beyond 64 bits", value)
    return kind


def _type_of_cell(cell: str) -> ColumnType:
    if _INTEGER.fullmatch(cell):
        # An int64 has at most 20 characters; `int` of thousands of digits would be slow.
        return "int64" if len(cell) < 21 and _MIN_INT64 <= int(cell) <= _MAX_INT64 else "string"
    if _FLOAT.fullmatch(cell) and math.isfinite(float(cell)):
        return "float64"
    return "bool" if cell.lower() in ("true", "false") else "string"


def _exact_as_float(integer: int | str) -> bool:
    whole = int(integer)
    return -_ALL_EXACT <= whole <= _ALL_EXACT or int(float(whole)) == whole


def _as_type(
    value: Any, own: ColumnType, kind: ColumnType, typed: bool, name: str
) -> MetadataValue:
    """Convert a value from type ``own`` to type ``kind``."""
    if own == kind:
        return value if typed or kind == "string" else _PARSE[kind](value)
    if kind == "string" and not typed:
        return str(value)
    if kind == "float64" and own == "int64":
        if _exact_as_float(value):
            return float(value)
        raise BadRow(f"column {name!r} is of type float64, which would round this integer", value)
    if kind == "int64" and own == "float64":
        reason = "float64 would round some of its integers, so it cannot hold this value"
        raise BadRow(f"column {name!r} is of type int64; {reason}", value)
    if own == "string" and kind in ("timestamp", "date"):
        try:
            return _PARSE[kind](value)
        except (ValueError, OverflowError):  # overflow: in UTC the year is outside 1 to 9999
            pass
    raise BadRow(f"column {name!r} is of type {kind}, this value is of type {own}", value)


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


_PARSE: Mapping[ColumnType, Callable[[str], MetadataValue]] = {
    "int64": int,
    "float64": float,
    "bool": lambda cell: cell.lower() == "true",
    "timestamp": _time,
    "date": date.fromisoformat,
}
