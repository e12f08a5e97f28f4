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
from datetime import UTC, date, datetime

import numpy as np

from sbert_search.errors import CorpusError
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


def plain_value(value: object) -> object:
    """Convert a NumPy scalar, also inside a list, to a Python value; return other values as is."""
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


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


class Conditions:
    """Writes conditions over the metadata columns of an index, of which it gets the types."""

    def __init__(self, columns: Mapping[str, ColumnType]) -> None:
        self._columns = columns
        doc_id = self.name("doc_id") if "doc_id" not in columns else "own.doc_id"
        self.always, self.never = f"{doc_id} IS NOT NULL", f"{doc_id} IS NULL"
        self._doc_id = doc_id

    def kind(self, column: str) -> ColumnType | None:
        """Return the type of a column; None: no document has it."""
        if column == "title" and column not in self._columns:
            return "string"
        return self._columns.get(column)

    def name(self, column: str) -> str:
        """Return the quoted name of a column, with ``meta.`` if it is also a name of the index."""
        prefix = "meta." if column in _OWN and column in self._columns else ""
        return f'{prefix}"{column.replace(chr(34), chr(34) * 2)}"'

    def id_in(self, doc_ids: Iterable[str]) -> str:
        """Match documents of these ids."""
        values = ", ".join(map(literal, doc_ids))
        return f"({self._doc_id} IN ({values}))" if values else self.never

    def is_null(self, column: str) -> str:
        """Match documents without a value in a column."""
        return f"{self.name(column)} IS NULL" if self.kind(column) else self.always

    def equals(self, column: str, value: object) -> str:
        """Match documents with this value in a column; no text equals a number."""
        value = plain_value(value)
        return self.is_null(column) if value is None else self._compare(column, "=", value)

    def is_in(self, column: str, values: Iterable[object]) -> str:
        """Match documents with one of these values in a column."""
        values, kind = list(map(plain_value, values)), self.kind(column)
        listed = ", ".join(_typed(kind, value) for value in values if _fits(kind, value))
        found = self.never
        if listed:
            found = self._known(column, f"{self.name(column)} IN ({listed})")
        return any_of([found, self.is_null(column)]) if None in values else found

    def compares(self, column: str, order: str, value: object) -> str:
        """Match documents whose value in a column is ``<``, ``<=``, ``>`` or ``>=`` another one."""
        value = plain_value(value)
        if self.kind(column) == "bool" and isinstance(value, (int, float)):
            # To Python, True and False are 1 and 0.
            return self.is_in(column, [f for f in (True, False) if _ORDERS[order](f, value)])
        return self._compare(column, order, value)

    def contains(self, column: str, value: object) -> str:
        """Match documents whose list in a column contains a value."""
        kind, value = self.kind(column) or "", plain_value(value)
        item_kind = kind[5:-1] if kind.startswith("list[") else None
        if not _fits(item_kind, value):
            return self.never
        return self._known(column, f"{_typed(item_kind, value)} IN {self.name(column)}")

    def has_text(self, column: str, text: str, *, ignore_case: bool = False) -> str:
        """Match documents whose text in a column contains ``text``."""
        if self.kind(column) != "string":
            return self.never
        pattern = "".join(f"\\{each}" if each in "%_\\" else each for each in text)
        like = "ILIKE" if ignore_case else "LIKE"
        return self._known(column, f"{self.name(column)} {like} {literal(f'%{pattern}%')}")

    def _compare(self, column: str, sign: str, value: object) -> str:
        kind = self.kind(column)
        if not _fits(kind, value):
            return self.never
        return self._known(column, f"{self.name(column)} {sign} {_typed(kind, value)}")

    def _known(self, column: str, condition: str) -> str:
        return f"({condition} AND {self.name(column)} IS NOT NULL)"


def literal(value: object) -> str:
    """Return the SQL literal of a text, a number, a flag, a date or a time."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return f"'{moment.isoformat()}'"
    if isinstance(value, date):
        return f"'{value.isoformat()}'"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    if isinstance(value, (int, float)):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"


def all_of(conditions: Iterable[str]) -> str:
    """Join conditions by AND."""
    return f"({' AND '.join(conditions)})"


def any_of(conditions: Iterable[str]) -> str:
    """Join conditions by OR."""
    return f"({' OR '.join(conditions)})"


def none_of(condition: str) -> str:
    """Negate a condition."""
    return f"NOT ({condition})"


def _typed(kind: str | None, value: object) -> str:
    """Return the SQL literal of a value for a column of a type: 1 as TRUE for a flag column."""
    if kind == "bool":
        return literal(value == 1)
    return literal(int(value) if isinstance(value, bool) else value)


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
