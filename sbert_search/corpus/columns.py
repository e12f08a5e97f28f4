"""Types of metadata columns: learned from the rows, fixed for a whole source."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any, Literal

from sbert_search.corpus.formats.rows import BadRow, check_text
from sbert_search.records import MetadataValue

ColumnType = Literal["string", "int64", "float64", "bool", "timestamp", "date"]
"""Nested values are kept as JSON text, so their type is ``string``."""

MAX_COLUMNS = 1000

_TYPE_OF: Mapping[type, ColumnType] = {
    str: "string",
    int: "int64",
    float: "float64",
    bool: "bool",
    datetime: "timestamp",
    date: "date",
}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")  # "007" is a code, not a number
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1
_ALL_EXACT = 1 << 53  # float64 holds every integer up to this exactly, and some beyond
_NUMBERS = {"int64", "float64"}


class Columns:
    """What is known of the metadata columns of a source.

    A typed value (JSON, Parquet) must fit the first type seen in its column, where int64 may widen
    to float64 if no integer is rounded by that. A cell of CSV has no type of its own, so a column
    of cells gets the narrowest type that all its cells fit: int64, float64 or bool, else string. A
    string that is an ISO 8601 date or time fits a column known as such; a time without a zone is
    one in UTC.

    Args:
        known: Types to start with, as those of an index.
        widens: Whether a known column of int64 holds only integers that float64 holds exactly;
            asked when it would widen.
    """

    def __init__(
        self,
        known: Mapping[str, ColumnType] | None = None,
        widens: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.types: dict[str, ColumnType] = dict(known or {})
        self._widens = widens
        self._unasked = {name for name, kind in self.types.items() if kind == "int64"}
        self._loose: set[str] = set()  # seen only as cells of text so far
        self._precise: set[str] = set()  # hold an integer that float64 would round

    def learn(self, metadata: Mapping[str, Any], *, typed: bool) -> None:
        """Take a row into account; a row that does not fit changes nothing.

        Raises:
            BadRow: A value does not fit its column.
        """
        news, precise = {}, set()
        for name, value in metadata.items():
            kind = self._type_with(name, value, typed)
            if kind != self.types.get(name):
                news[name] = kind
            if kind == "int64" and not _exact_as_float(value):
                precise.add(name)
        if added := news.keys() - self.types.keys():
            for name in added:
                check_text(name, name)
            if len(self.types) + len(added) > MAX_COLUMNS:
                raise BadRow(f"more than {MAX_COLUMNS} metadata columns", min(added))
        if typed:
            self._loose.difference_update(metadata)
        else:
            self._loose |= added
        self.types |= news
        self._precise |= precise

    def convert(self, metadata: Mapping[str, Any], *, typed: bool) -> dict[str, MetadataValue]:
        """Give the values of a row the types of their columns.

        Raises:
            BadRow: A value does not fit its column.
        """
        if not metadata.keys() <= self.types.keys():
            self.learn(metadata, typed=typed)  # only a row that was refused then: say why again
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
            known = join_types(known, own) if name in self._loose else known
        elif _exact_as_float(value) if own == "int64" else self._may_widen(name):
            known = "float64"
        elif name in self._loose and not typed:
            known = "string"
        _as_type(value, own, known, typed, name)
        return known

    def _may_widen(self, name: str) -> bool:
        """Whether float64 holds all integers of a column exactly."""
        if name in self._unasked:
            self._unasked.discard(name)
            if not self._widens(name):
                self._precise.add(name)
        return name not in self._precise


def join_types(a: ColumnType, b: ColumnType) -> ColumnType:
    """Return the narrowest type that holds the text of both."""
    if a == b:
        return a
    return "float64" if {a, b} == _NUMBERS else "string"


def _type_of(value: Any, name: str) -> ColumnType:
    kind = _TYPE_OF.get(type(value))
    if kind is None:
        raise BadRow(f"column {name!r} holds a {type(value).__name__}, which no type holds", value)
    if kind == "float64" and not math.isfinite(value):
        raise BadRow(f"column {name!r} is not finite", value)
    if kind == "int64" and not _MIN_INT64 <= value <= _MAX_INT64:
        raise BadRow(f"column {name!r} is beyond 64 bits", value)
    return kind


def _type_of_cell(cell: str) -> ColumnType:
    if _INTEGER.fullmatch(cell):
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
    """Convert a value of the type ``own`` to the type ``kind``."""
    if own == kind:
        return value if typed or kind == "string" else _PARSE[kind](value)
    if kind == "string" and not typed:
        return str(value)
    if kind == "float64" and own == "int64":
        if _exact_as_float(value):
            return float(value)
        raise BadRow(f"column {name!r} is of type float64, which would round this integer", value)
    if kind == "int64" and own == "float64":
        reason = "whose integers float64 would round, so it cannot hold this value"
        raise BadRow(f"column {name!r} is of type int64, {reason}", value)
    if own == "string" and kind in ("timestamp", "date"):
        try:
            return _PARSE[kind](value)
        except (ValueError, OverflowError):  # the latter: in UTC it is outside the years 1 to 9999
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
