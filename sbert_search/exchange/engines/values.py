"""Passages as records of JSON values, which search engines store with the vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime

from sbert_search.exchange.passages import Passages


def records(batch: Passages, fields: Iterable[str]) -> Iterator[dict[str, object]]:
    """Yield a record of each passage.

    The fields of a record are ``doc_id`` (id of the document), ``chunk`` (number of the passage in
    the document), ``title``, ``text``, and the metadata in ``fields``. Dates and times become
    strings in ISO 8601, whose text order is the time order. A missing value has no field.
    """
    names = ("doc_id", "chunk", "title", "text", *fields)
    for row in batch.table.select(names).to_pylist():
        yield {name: plain(value) for name, value in row.items() if value is not None}


def plain(value: object) -> object:
    """Convert a value of a column to a JSON value."""
    if isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None)
        return f"{moment.isoformat(timespec='microseconds')}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def scalar(kind: str) -> tuple[str, bool]:
    """Return the type of single values of a column, and whether the column contains lists."""
    return (kind[5:-1], True) if kind.startswith("list[") else (kind, False)


def typed(kinds: Mapping[str, str], types: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's type of each field; a list has the type of its values."""
    return {name: types[scalar(kind)[0]] for name, kind in kinds.items()}
