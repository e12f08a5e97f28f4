"""Types of metadata columns: learned from the rows, fixed for a whole source."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from typing import Any, Literal

from sbert_search.corpus.rows import BadRow, check_text
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
_INT64 = range(-(1 << 63), 1 << 63)


class Columns:
    """What is known of the metadata columns of a source.

    A typed value (JSON, Parquet) must fit the first type seen in its column, where int64 may widen
    to float64. A cell of CSV has no type of its own, so a column of cells gets the narrowest type
    that all its cells fit: int64, float64 or bool, else string. Columns given at the start (those
    of an index that exists) never change.
    """

    def __init__(self, fixed: Mapping[str, ColumnType] | None = None) -> None:
        self.types: dict[str, ColumnType] = dict(fixed or {})
        self._fixed = frozenset(self.types)
        self._loose: set[str] = set()  # seen only as cells of text so far

    def learn(self, metadata: Mapping[str, Any], *, typed: bool) -> None:
        """Take a row into account; a row that does not fit changes nothing.

        Raises:
            BadRow: A value does not fit its column.
        """
        news = {
            name: kind
            for name, value in metadata.items()
            if (kind := self._type_with(name, value, typed)) != self.types.get(name)
        }
        for name in news.keys() - self.types.keys():
            check_text(name, name)
        if len(self.types) + len(news) > MAX_COLUMNS and not news.keys() <= self.types.keys():
            raise BadRow(f"more than {MAX_COLUMNS} metadata columns", sorted(news)[0])
        self._loose.difference_update(metadata if typed else ())
        self._loose.update(() if typed else news.keys() - self.types.keys())
        self.types.update(news)

    def convert(self, metadata: Mapping[str, Any], *, typed: bool) -> dict[str, MetadataValue]:
        """Give the values of a row the types of their columns.

        Raises:
            BadRow: A value does not fit its column.
        """
        return dict(self._converted(metadata, typed))

    def _converted(
        self, metadata: Mapping[str, Any], typed: bool
    ) -> Iterator[tuple[str, MetadataValue]]:
        for name, value in metadata.items():
            kind = self.types.get(name)
            if kind is None:
                raise BadRow(f"column {name!r} was not there when the source was surveyed", value)
            yield name, _as_type(value, kind, typed, name)

    def _type_with(self, name: str, value: Any, typed: bool) -> ColumnType:
        known = self.types.get(name)
        own = _type_of(value, name) if typed else _type_of_cell(value)
        if known is None:
            return own
        if name not in self._fixed and (name in self._loose or {known, own} == _NUMBERS):
            known = join_types(known, own)
        _as_type(value, known, typed, name)
        return known


_NUMBERS = {"int64", "float64"}


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
    if kind == "int64" and value not in _INT64:
        raise BadRow(f"column {name!r} is beyond 64 bits", value)
    return kind


def _type_of_cell(cell: str) -> ColumnType:
    if _INTEGER.fullmatch(cell):
        return "int64" if len(cell) < 21 and int(cell) in _INT64 else "string"
    if _FLOAT.fullmatch(cell) and math.isfinite(float(cell)):
        return "float64"
    return "bool" if cell.lower() in ("true", "false") else "string"


def _as_type(value: Any, kind: ColumnType, typed: bool, name: str) -> MetadataValue:
    """Convert a value, where nothing is lost by it."""
    own = _type_of(value, name) if typed else _type_of_cell(value)
    if kind == "string" and (own == kind or not typed):
        return str(value)
    if kind == "float64" and own in _NUMBERS:
        return float(value)
    if own == kind:
        return _parse_cell(value, kind) if not typed else value
    if isinstance(value, str) and kind in ("timestamp", "date"):
        parse = datetime.fromisoformat if kind == "timestamp" else date.fromisoformat
        try:
            return parse(value)
        except ValueError:
            pass
    raise BadRow(f"column {name!r} is of type {kind}, this value is {own}", value)


def _parse_cell(cell: str, kind: ColumnType) -> MetadataValue:
    return int(cell) if kind == "int64" else cell.lower() == "true"
