"""Documents of frameworks as rows of an index, and back.

A framework's document has metadata of arbitrary types. An index has typed metadata columns, by
which searches can be filtered. Texts, numbers, flags, dates and lists of one of these types become
columns. All other values (None, mappings, empty and mixed lists, integers beyond int64, NaN and
infinities) are stored as JSON in one column, and no filter sees them. They are returned as JSON
represents them: a tuple as a list, and the keys of a mapping as strings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime

import numpy as np

from sbert_search.errors import CorpusError
from sbert_search.records import Document
from sbert_search.text.fields import FieldNames

FIELDS = FieldNames(id="_id", text="_text", title="_title")
OTHER = "_other"  # the column with the JSON text of the values that fit no column
RESERVED = frozenset({"_id", "_text", "_title", OTHER})

_SCALARS = (str, int, float, bool, datetime, date)
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Record:
    """A document as the frameworks know it.

    Attributes:
        doc_id: The id.
        text: The text; "" if it has none.
        metadata: The values by name.
    """

    doc_id: str
    text: str
    metadata: Mapping[str, object]


def row_of(record: Record) -> dict[str, object]:
    """Return the row of an index for a record.

    Raises:
        CorpusError: A name of the metadata is reserved or not a string, or a value is of a type
            that neither a column nor JSON can hold.
    """
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
