"""Passages as records of JSON values, which engines store with the vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime

from sbert_search.exchange.passages import Passages


def records(batch: Passages, fields: Iterable[str]) -> Iterator[dict[str, object]]:
    """Yield, for each passage, its document's id, its number, title, text and metadata.

    Dates and times become strings in ISO 8601, which sort in the order of time. A missing value is
    left out.
    """
    names = ("doc_id", "chunk", "title", "text", *fields)
    for row in batch.table.select(names).to_pylist():
        yield {name: plain(value) for name, value in row.items() if value is not None}


def plain(value: object) -> object:
    """Return a value of a column as a value of JSON."""
    if isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None)
        return f"{moment.isoformat(timespec='microseconds')}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def scalar(kind: str) -> tuple[str, bool]:
    """Return the type of a column's values, and whether the column has lists of them."""
    return (kind[5:-1], True) if kind.startswith("list[") else (kind, False)


def typed(kinds: Mapping[str, str], types: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's type of each field; that of a list is the type of its values."""
    return {name: types[scalar(kind)[0]] for name, kind in kinds.items()}
