"""Metadata columns of the documents on a map, as arrays for the HTML page of the map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.storage.manifest import ColumnType
from sbert_search.records import MetadataValue, ScalarValue

MOST_CHARACTERS = 8_000_000  # characters of the different values of a column on a page
CUT = 200  # characters of each value that are kept if a column is too long
_SAFE = 2**53  # JavaScript's numbers, float64, represent all integers up to this exactly

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Kind: TypeAlias = Literal["number", "time", "date"]


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of numbers, dates or times.

    Attributes:
        name: The column.
        kind: Meaning of the numbers. Dates and times are milliseconds since 1970 in UTC.
        numbers: float64 (n,); NaN for a document without a value.
    """

    name: str
    kind: Kind
    numbers: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of texts, truth values, large integers or lists.

    Attributes:
        name: The column.
        kind: Its type in the index.
        values: The different values, by descending number of documents.
        starts: The codes of document i are ``codes[starts[i]:starts[i + 1]]``, uint32 (n + 1,).
        codes: The values of all documents, in order, as indices in ``values``, uint32.
        missing: Numbers of the documents without a value, uint32; an empty list is a value.
        is_cut: Whether only the first `CUT` characters of each value are kept, since the whole
            values have too many characters in total.
    """

    name: str
    kind: ColumnType
    values: list[str]
    starts: NDArray[np.uint32]
    codes: NDArray[np.uint32]
    missing: NDArray[np.uint32]
    is_cut: bool


MapColumn: TypeAlias = NumberColumn | TextColumn


def gather(
    metadata: Sequence[Mapping[str, MetadataValue]], kinds: Mapping[str, ColumnType]
) -> tuple[list[MapColumn], list[str]]:
    """Make the columns of a page from the metadata of its documents.

    Returns:
        The columns, sorted by name, and the names of the columns that are left out, since their
        values have too many characters in total even if each value is cut.
    """
    columns: list[MapColumn] = []
    left_out = []
    for name, kind in sorted(kinds.items()):
        values = [document.get(name) for document in metadata]
        column = _numbers(name, kind, values) or _texts(name, kind, values)
        if column is None:
            left_out.append(name)
        else:
            columns.append(column)
    return columns, left_out


def _numbers(name: str, kind: ColumnType, values: Sequence[MetadataValue]) -> NumberColumn | None:
    """Make a column of numbers or times; None for another type, or for too large integers."""
    kinds: dict[str, Kind] = {
        "int64": "number",
        "float64": "number",
        "timestamp": "time",
        "date": "date",
    }
    if kind not in kinds:
        return None
    if kind == "int64" and any(isinstance(v, int) and abs(v) > _SAFE for v in values):
        return None
    return NumberColumn(name, kinds[kind], np.array([_number(value) for value in values], float))


def _number(value: MetadataValue) -> float:
    if isinstance(value, datetime):  # a datetime is a date too
        return (value - _EPOCH) // timedelta(microseconds=1) / 1000
    if isinstance(value, date):
        return (value - _EPOCH.date()).days * 86_400_000.0
    return float(value) if isinstance(value, (int, float)) else float("nan")


def _texts(name: str, kind: ColumnType, values: Sequence[MetadataValue]) -> TextColumn | None:
    """Make a column of texts, cut if they are too long in total; None if that is not enough."""
    lists = [_as_texts(value) for value in values]
    is_cut = _are_too_long({text for texts in lists for text in texts})
    if is_cut:
        lists = [list(dict.fromkeys(text[:CUT] for text in texts)) for texts in lists]
    flat = [text for texts in lists for text in texts]
    counts = Counter(flat)
    if is_cut and _are_too_long(counts):
        return None
    known = sorted(counts, key=lambda text: (-counts[text], text))
    code_of = {text: code for code, text in enumerate(known)}
    starts = np.zeros(len(lists) + 1, np.uint32)
    np.cumsum([len(texts) for texts in lists], out=starts[1:])
    codes = np.fromiter((code_of[text] for text in flat), np.uint32, len(flat))
    missing = np.flatnonzero([value is None for value in values]).astype(np.uint32)
    return TextColumn(name, kind, known, starts, codes, missing, is_cut)


def _are_too_long(texts: Iterable[str]) -> bool:
    return sum(map(len, texts)) > MOST_CHARACTERS


def _as_texts(value: MetadataValue) -> list[str]:
    if value is None:
        return []
    if isinstance(value, (str, int, float, date)):
        return [_text(value)]
    return list(dict.fromkeys(map(_text, value)))


def _text(value: ScalarValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    return value.isoformat() if isinstance(value, date) else str(value)
