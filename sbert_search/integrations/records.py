"""Documents of frameworks as rows of an index, and back; conditions over metadata columns.

A framework's document has metadata of arbitrary types. An index has typed metadata columns, by
which searches can be filtered. Texts, numbers, flags, dates and lists of one of these types become
columns. All other values (None, mappings, empty and mixed lists, integers beyond int64, NaN and
infinities) are stored as JSON in one column, and no filter sees them. They are returned as JSON
represents them: a tuple as a list, and the keys of a mapping as strings.

A framework's filter may name a field that no document has, or compare a field with a value of any
type. SQL refuses unknown columns and values of another type than the column, and a comparison with
NULL is neither true nor false. The conditions made here are true or false for every document, so
that they can be negated.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime

from sbert_search.errors import CorpusError
from sbert_search.index.filters.structured import ColumnConditions, literal, plain_value
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.records import Document
from sbert_search.text.fields import FieldNames

FIELDS = FieldNames(id="_id", text="_text", title="_title")
OTHER = "_other"  # the column with the JSON text of the values that fit no column
RESERVED = frozenset({"_id", "_text", "_title", OTHER})

_SCALARS = (str, int, float, bool, datetime, date)
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Record:
    """A document as the frameworks know it."""

    doc_id: str
    text: str  # "" if it has none
    metadata: Mapping[str, object]


def row_of(record: Record) -> dict[str, object]:
    """Return the row of an index for a record; names in `RESERVED` are refused."""
    row: dict[str, object] = {"_id": record.doc_id, "_title": "", "_text": record.text}
    other: dict[str, object] = {}
    for name, value in record.metadata.items():
        if not isinstance(name, str) or name in RESERVED:
            raise CorpusError(
                f"Document {record.doc_id!r} has metadata named {name!r}, which cannot be the "
                "name of a column; rename it."
            )
        plain = plain_value(value)
        (row if _fits_a_column(plain) else other)[name] = plain
    if other:
        row[OTHER] = _json(other, record.doc_id)
    return row


def record_of(document: Document) -> Record:
    """Return the record of an indexed document; its title becomes an entry of the metadata."""
    return Record(document.doc_id, document.text, metadata_of(document.metadata, document.title))


def metadata_of(columns: Mapping[str, object], title: str) -> dict[str, object]:
    """Return a framework's metadata, given an indexed document's metadata columns and title."""
    metadata = dict(columns)
    if (other := metadata.pop(OTHER, None)) is not None:
        metadata.update(json.loads(str(other)))
    if title:
        metadata.setdefault("title", title)
    return metadata


def _fits_a_column(value: object) -> bool:
    if isinstance(value, list):
        kinds = {type(item) for item in value}
        return len(kinds) == 1 and kinds <= set(_SCALARS) and all(map(_fits_a_column, value))
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return -_INT64 <= value < _INT64
    return type(value) in _SCALARS


def _json(values: Mapping[str, object], doc_id: str) -> str:
    try:
        return json.dumps(values, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise CorpusError(
            f"Document {doc_id!r} has metadata that cannot be stored: {error}. Metadata may hold "
            "texts, numbers, flags, dates, lists of dates, and any JSON values."
        ) from error


_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OWN = ("doc_id", "title")


class Conditions(ColumnConditions):
    """Writes conditions over the metadata columns of an index, of which it gets the types."""

    def __init__(self, columns: Mapping[str, ColumnType]) -> None:
        self._columns = columns
        doc_id = self.name("doc_id") if "doc_id" not in columns else "own.doc_id"
        self.always, self.never = f"{doc_id} IS NOT NULL", f"{doc_id} IS NULL"
        self._doc_id = doc_id

    def kind(self, column: str) -> ColumnType | None:
        """Return the type of a column; None: no document has it."""
        return self._columns.get(column, "string" if column in _OWN else None)

    def name(self, column: str) -> str:
        """Return the quoted name of a column, with ``meta.`` if it is also a name of the index."""
        prefix = "meta." if column in _OWN and column in self._columns else ""
        return prefix + super().name(column)

    def id_in(self, doc_ids: Iterable[str]) -> str:
        """Match documents of these ids."""
        values = ", ".join(map(literal, doc_ids))
        return f"({self._doc_id} IN ({values}))" if values else self.never

    def is_null(self, column: str) -> str:
        """Match documents without a value in a column."""
        if column == "title" and column not in self._columns:
            return super().compares(column, "=", "")  # the index's own is never NULL
        return super().is_null(column) if self.kind(column) else self.always

    def is_in(self, column: str, values: Iterable[object]) -> str:
        """Match documents with one of these values in a column."""
        kind, plain = self.kind(column), [plain_value(value) for value in values]
        fitting = [_typed(kind, value) for value in plain if value is None or _fits(kind, value)]
        return super().is_in(column, fitting) if fitting else self.never

    def compares(self, column: str, order: str, value: object) -> str:
        """Match documents whose value compares so with another one; no text equals a number."""
        kind, value = self.kind(column), plain_value(value)
        if order in _ORDERS and kind == "bool" and isinstance(value, (int, float)):
            # To Python, True and False are 1 and 0.
            return self.is_in(column, [f for f in (True, False) if _ORDERS[order](f, value)])
        if not _fits(kind, value):
            return self.never
        return super().compares(column, order, _typed(kind, value))

    def contains(self, column: str, value: object) -> str:
        """Match documents whose list in a column contains a value."""
        kind, value = self.kind(column) or "", plain_value(value)
        item_kind = kind[5:-1] if kind.startswith("list[") else None
        if not _fits(item_kind, value):
            return self.never
        return super().contains(column, _typed(item_kind, value))

    def has_text(self, column: str, text: str, *, ignore_case: bool = False) -> str:
        """Match documents whose text in a column contains ``text``."""
        if self.kind(column) != "string":
            return self.never
        return super().has_text(column, text, ignore_case=ignore_case)


def _typed(kind: str | None, value: object) -> object:
    """Return a value as one for a column of a type: 1 as True for a flag column."""
    if kind == "bool" and value is not None:
        return value == 1
    return int(value) if isinstance(value, bool) else value


def _fits(kind: str | None, value: object) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return False
    if kind == "bool":
        return isinstance(value, bool) or (isinstance(value, (int, float)) and value in (0, 1))
    if kind in ("int64", "float64"):
        return isinstance(value, (bool, int, float))
    if kind == "timestamp":
        return isinstance(value, date) or _is_iso(datetime, value)
    if kind == "date":
        is_time = isinstance(value, datetime)
        return (isinstance(value, date) and not is_time) or _is_iso(date, value)
    return kind == "string" and isinstance(value, str)


def _is_iso(kind: type[date], value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        kind.fromisoformat(value)
    except ValueError:
        return False
    return True
