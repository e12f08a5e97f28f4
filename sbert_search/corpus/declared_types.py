"""Convert values to the types that the user has chosen for their columns."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, time
from typing import cast

from sbert_search.corpus.column_types import (
    FLAGS,
    MAX_INT64,
    ColumnType,
    as_text,
    element_type,
    exact_as_float,
    parsed,
    present,
    type_of,
)
from sbert_search.corpus.formats.rows import BadRow
from sbert_search.records import MetadataValue, ScalarValue


def as_declared(value: object, kind: ColumnType, name: str) -> MetadataValue:
    """Convert a value to the type that the user has chosen for its column.

    Text is parsed. The text of a list is a JSON list, or values separated by semicolons. A single
    value other than text becomes a list of one value.

    Raises:
        BadRow: The text cannot be parsed, or another value cannot be converted exactly.
    """
    inner = element_type(kind)
    if inner is not None:
        return cast(MetadataValue, [as_declared(v, inner, name) for v in _elements(value, name)])
    if kind == "string":
        return as_text(value, name)
    converted = parsed(value, kind) if isinstance(value, str) else _converted(value, kind)
    if converted is None:
        raise BadRow(f"column {name!r} is of type {kind}, which this value does not fit", value)
    type_of(converted, name)  # raises for NaN, infinities and integers beyond 64 bits
    integer = isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]+", value.strip())
    if kind == "float64" and integer and not exact_as_float(integer[0]):
        raise BadRow(f"column {name!r} is of type float64, which would round this integer", value)
    return converted


def _elements(value: object, name: str) -> list[object]:
    if isinstance(value, list):
        return present(value)
    if not isinstance(value, str):
        return [value]
    if value.lstrip().startswith("["):
        try:
            values = json.loads(value)
        except (ValueError, RecursionError):
            raise BadRow(f"column {name!r} has a broken JSON list", value) from None
        return present(values)
    return [part.strip() for part in value.split(";") if part.strip()]


def _converted(value: object, kind: ColumnType) -> ScalarValue | None:
    """Convert a value other than text exactly; None if this is impossible."""
    if type(value) is bool or kind == "bool":
        return FLAGS.get(str(int(value))) if kind == "bool" and value in (0, 1) else None
    if isinstance(value, int):
        if kind == "float64":
            return float(value) if abs(value) <= MAX_INT64 and exact_as_float(value) else None
        return value if kind == "int64" else None
    if isinstance(value, float):
        if kind == "int64":
            return int(value) if value.is_integer() else None
        return value if kind == "float64" else None
    if isinstance(value, datetime):
        utc = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        if kind == "timestamp":
            return utc
        return utc.date() if kind == "date" and utc.time() == time() else None
    if isinstance(value, date):
        midnight = datetime.combine(value, time(), UTC)
        return value if kind == "date" else midnight if kind == "timestamp" else None
    return None
