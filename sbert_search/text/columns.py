"""Types of metadata columns, inferred or chosen by the user, and the conversion of the values."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from sbert_search.base.cache import typed_lru_cache
from sbert_search.base.progress import warn
from sbert_search.errors import ConfigError
from sbert_search.records import MetadataValue, ScalarValue
from sbert_search.text.column_types import (
    FLAGS,
    MAX_INT64,
    NUMBERS,
    UNIT,
    ColumnType,
    as_text,
    as_type,
    element_type,
    exact_as_float,
    in_default_format,
    list_of,
    parse_type,
    parse_value,
    present,
    split_format,
    type_of,
    type_of_cell,
)
from sbert_search.text.formats.rows import BadRow, Cell, check_text


def as_declared(value: object, kind: ColumnType, name: str, form: str = "") -> MetadataValue:
    """Convert a value exactly to the type that the user chose for its column, or raise `BadRow`.

    Text is parsed; ``form`` is its format, "" that of `parse_value`. The text of a list is a JSON
    list, or values separated by semicolons. A single value other than text becomes a list of one
    value.
    """
    inner = element_type(kind)
    if inner is not None:
        items = [as_declared(item, inner, name, form) for item in _elements(value, name)]
        return cast(MetadataValue, items)
    if kind == "string":
        return str(as_text(value, name))  # a `Cell` becomes a plain str
    given, written = value, str(kind)
    if form and isinstance(value, str):
        value, written = in_default_format(value, form, kind), f"{kind} in the format {form}"
    converted = (
        parse_value(value, kind) if isinstance(value, str) else _convert_exactly(value, kind)
    )
    if converted is None:
        raise BadRow(f"column {name!r} is of type {written}, which this value does not fit", given)
    type_of(converted, name)  # raises for NaN, infinities and integers beyond 64 bits
    integer = isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]+", value.strip())
    if kind == "float64" and integer and not exact_as_float(integer[0]):
        raise BadRow(f"column {name!r} is of type float64, which would round this integer", given)
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


def _convert_exactly(value: object, kind: ColumnType) -> ScalarValue | None:
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


MAX_COLUMNS = 1000
_EXAMPLES = 100  # texts by which the type is chosen that a column of texts should have
_EXAMPLE_CHARS = 100  # of each; no date and no number is longer

_PLAIN = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")
# A date or a number that only a declared format reads.
_FOREIGN = re.compile(
    r"(?:[0-9]{1,2}([./-])[0-9]{1,2}\1[0-9]{4}|[0-9]{2}([./-])[0-9]{2}\2[0-9]{2})"
    r"(?: [0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?)?"
    r"|-?[1-9][0-9]{0,2}([., '\xa0\u202f])[0-9]{3}(?:\3[0-9]{3})*(?:[.,][0-9]+)?|-?[0-9]+,[0-9]+"
)
_CURRENCY = "[$\xa2-\xa5\u20a0-\u20cf]|EUR|USD|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK"
# A number before a unit, or after a sign or code of a currency; other codes may be such as A 12.
_WITH_UNIT = re.compile(rf"(-?)({_CURRENCY}|)\s?(-?[0-9](?:[0-9.,'\u2019\s]*[0-9])?)\s?({UNIT}|)")
_DAYS = [f"%{first}{mark}%{second}{mark}%Y" for first, second in ("dm", "md") for mark in "./-"]
_FORMATS = ["float:1.234,56", "float:1,234.56", "float:1 234,56", "float:1'234.56"]
_LIKELY = [
    *(f"date:{day}" for day in (*_DAYS, *(day.lower() for day in _DAYS))),
    *(f"timestamp:{day} {time}" for day in _DAYS for time in ("%H:%M", "%H:%M:%S")),
    *("int", "float", *_FORMATS),
]
_LIKELY_WITH_UNIT = ["int:1234", *_FORMATS]


def _is_value(text: str) -> bool:
    return bool(_PLAIN.fullmatch(text) or _FOREIGN.fullmatch(text))


def likely_type(texts: Iterable[str]) -> str:
    """Return the type, with its format, that texts should have had to be compared by value.

    "": most are no dates or numbers, or their order as texts is that of their values.
    """
    texts = sorted(texts)
    parts = [found.groups() for found in map(_WITH_UNIT.fullmatch, texts) if found]
    if len({(before, after) for _, before, _, after in parts}) == 1 and any(parts[0][1::2]):
        before, after = parts[0][1::2]
        numbers = [sign + number for sign, _, number, _ in parts]
        kind, _, form = _best(numbers, _LIKELY_WITH_UNIT, len(texts)).partition(":")
        return kind and f"{kind}:{f'{before} {form} {after}'.strip()}"
    shaped = list(filter(_is_value, texts))
    return _best(shaped, _LIKELY, len(texts))


def _best(texts: Sequence[str], types: Sequence[str], n_texts: int) -> str:
    """Return the type that reads the most texts; "": not half of ``n_texts``, or in their order."""
    values = {declared: list(_read(texts, declared)) for declared in types}
    best = max(types, key=lambda declared: len(values[declared]))
    wrong = ":" in best or values[best] != sorted(values[best])
    return best if wrong and 2 * len(values[best]) > n_texts else ""


def _read(texts: Iterable[str], declared: str) -> Iterator[Any]:
    kind, form = parse_type(declared), split_format(declared)[1]
    for text in texts:
        with suppress(BadRow):
            yield as_declared(text, kind, "", form)


def some_texts(values: pa.Array) -> list[str]:
    """Return some of the texts of an array, of long ones the beginning."""
    step = -(-len(values) // _EXAMPLES) or 1
    chosen = [values.slice(at, 1) for at in range(0, len(values), step)]  # without a copy
    cut = pc.utf8_slice_codeunits(pa.chunked_array(chosen, values.type), 0, _EXAMPLE_CHARS)
    return list(filter(None, cut.to_pylist()))


def letter_by_letter(column: str, texts: Sequence[str], treated: str) -> str:
    """Return a message if texts that are ``treated`` as texts are dates or numbers; else ""."""
    if not (declared := likely_type(texts)):
        return ""
    remedy, example = shlex.quote(f"{column}={declared}"), next(filter(_is_value, texts), texts[0])
    return (
        f"The column {column!r} is text, such as {example!r}, and is {treated} letter by letter. "
        f"An index built with --column-type {remedy} or another format reads its values "
        f"(column_types={{{column!r}: {declared!r}}})."
    )


@typed_lru_cache(256)
def _warnings_of(column: str, treated: str) -> list[str]:
    return []  # this list remembers that a process has warned


def warn_of_texts(column: str, texts: Sequence[str], treated: str) -> None:
    """Give the message of `letter_by_letter` as a warning, once for a column."""
    said = _warnings_of(column, treated)
    if not said and (message := letter_by_letter(column, texts, treated)):
        said.append(message)
        warn(message)


class NewColumnError(Exception):
    """A row to convert has a column that `Columns.learn` saw in no row."""


class Columns:
    """The types of the metadata columns of a source.

    - A typed value (JSON, Parquet) must fit the type of the first value in its column. An int64
      column may become float64 if that rounds no integer: a rounded id would be another id.
    - The type of a list names the type of its values, such as list[int64]. Lists of int64 and of
      float64 make a list[float64] column if that rounds no integer. Another mixture of lists, or
      of lists and texts, makes a string column with the lists as JSON text, unless the column has a
      known list type. While all lists of a column are empty, its type stays open, also in an index.
    - Cells of CSV, and every `Cell`, are untyped. A column of cells gets the narrowest type that
      fits all its cells: int64, float64, bool or date, otherwise string.
    - A timestamp column takes texts that are ISO 8601 times or dates, and a date column takes texts
      that are ISO 8601 dates. Times without a time zone are UTC.
    - A column with a declared type keeps it: each value is converted to this type, and text is
      parsed in the declared format.

    ``known`` are the types of an existing index. ``widens`` returns whether a known column can get
    another type: float64 represents all stored integers of an int64 column exactly, or all stored
    lists of a list column are empty. It is called before the column gets the other type.
    """

    def __init__(
        self,
        known: Mapping[str, ColumnType] | None = None,
        widens: Callable[[str], bool] = lambda name: True,
        declared: Mapping[str, str] | None = None,
    ) -> None:
        self.types: dict[str, ColumnType] = dict(known or {})
        self._known = frozenset(self.types)
        self._widens = widens
        named = declared or {}
        self._declared = {
            name: _agreed(name, kind, self.types.get(name, kind))
            for name, kind in zip(named, map(parse_type, named.values()), strict=True)
        }
        self._formats = {name: split_format(kind)[1] for name, kind in named.items()}
        self._unchecked = {  # known columns for which `widens` may yet be called
            name for name, kind in self.types.items() if kind in ("int64", "list[string]")
        }
        # Of each string column with lists, as JSON text, and texts: the value that made it so.
        self.mixed: dict[str, object] = {}
        self.texts: dict[str, list[str]] = {}  # of new string columns: some, without plain numbers
        self._silent = self._known | named.keys()
        self._untyped: set[str] = set()  # columns with only untyped cells so far
        self._empty: set[str] = set()  # list columns with only empty lists so far
        # Columns that must not become float64 or list[float64]: those with an integer that float64
        # would round, and the known list columns.
        self._exact_only: set[str] = {n for n, kind in self.types.items() if element_type(kind)}

    def learn(self, metadata: Mapping[str, object], *, typed: bool) -> None:
        """Update the column types with a row; a row that does not fit raises `BadRow` first."""
        changed, exact_only = {}, set()
        for name, value in metadata.items():
            kind = self._type_with(name, value, typed and not isinstance(value, Cell))
            before = self.types.get(name, kind)
            is_mixed = isinstance(value, list) or element_type(before)
            if kind == "string" and is_mixed and name not in self._declared:
                self.mixed.setdefault(name, value)
            if kind != self.types.get(name):
                changed[name] = kind
            if kind in ("int64", "list[int64]") and name not in self._declared:
                integers = present(value) if isinstance(value, list) else [value]
                if not all(map(exact_as_float, integers)):
                    exact_only.add(name)
        if added := changed.keys() - self.types.keys():
            for name in added:
                check_text(name, name)
            if len(self.types) + len(added) > MAX_COLUMNS:
                raise BadRow(f"more than {MAX_COLUMNS} metadata columns", min(added))
        cells = {n for n, value in metadata.items() if not typed or isinstance(value, Cell)}
        self._untyped -= metadata.keys() - cells
        self._untyped |= added & cells
        self.types |= changed
        self._exact_only |= exact_only
        self._note_values(metadata, added)

    def copy(self) -> Columns:
        """Return the columns as they are now; learning from rows does not change the copy."""
        copied = copy.copy(self)
        copied.types = dict(self.types)
        copied.texts = {name: list(texts) for name, texts in self.texts.items()}
        copied.mixed = dict(self.mixed)
        for name in ("_unchecked", "_untyped", "_empty", "_exact_only"):
            setattr(copied, name, set(getattr(self, name)))
        return copied

    def convert(self, metadata: Mapping[str, Any], *, typed: bool) -> dict[str, MetadataValue]:
        """Convert the values of a row to the types of their columns; `BadRow` if one does not fit.

        A row with a column that `learn` saw in no row raises `NewColumnError`.
        """
        if not metadata.keys() <= self.types.keys():
            # `learn` raises BadRow again if it rejected this row before. Otherwise the row is new.
            self.learn(metadata, typed=typed)
            raise NewColumnError
        values = {}
        for name, value in metadata.items():
            if name in self._declared:
                kind, form = self._declared[name], self._formats[name]
                values[name] = as_declared(value, kind, name, form)
                continue
            has_type = typed and not isinstance(value, Cell)
            own = type_of(value, name) if has_type else type_of_cell(value)
            values[name] = as_type(value, own, self.types[name], has_type, name)
        return values

    def _type_with(self, name: str, value: Any, typed: bool) -> ColumnType:
        """Return the type that a column gets when a value is added."""
        if name in self._declared:
            as_declared(value, self._declared[name], name, self._formats[name])
            return self._declared[name]
        known = self.types.get(name)
        own = type_of(value, name) if typed else type_of_cell(value)
        if known == own or known is None:
            return own
        if isinstance(value, list) or element_type(known):
            known = self._list_type(name, known, own, value)
        elif {known, own} != NUMBERS:
            known = join_types(known, own) if name in self._untyped else known
        elif exact_as_float(value) if own == "int64" else self._may_widen(name):
            known = "float64"
        elif name in self._untyped and not typed:
            known = "string"
        as_type(value, own, known, typed, name)
        return known

    def _list_type(self, name: str, known: ColumnType, own: ColumnType, value: Any) -> ColumnType:
        """Return the new type of a list column, or of a column that gets a list."""
        if isinstance(value, list) and not present(value):
            return known
        if name in self._unchecked and element_type(own):
            self._unchecked.discard(name)
            if self._widens(name):
                self._empty.add(name)
                self._exact_only.discard(name)
        if name in self._known and name not in self._empty:
            return known
        if element_type(known) is None:
            return known  # a string column takes the list as JSON text; any other rejects it
        if name in self._empty and element_type(own):
            return own
        if {known, own} == {"list[int64]", "list[float64]"} and name not in self._exact_only:
            integers = [item for item in present(value) if isinstance(item, int)]
            return list_of("float64") if all(map(exact_as_float, integers)) else "string"
        return "string" if own == "string" or element_type(own) else known

    def _note_values(self, metadata: Mapping[str, object], added: set[str]) -> None:
        for name, value in metadata.items():
            if self.types[name] == "string" and isinstance(value, str) and name not in self._silent:
                texts = self.texts.setdefault(name, [])
                if len(texts) < _EXAMPLES and not _PLAIN.fullmatch(value):
                    texts.append(value[:_EXAMPLE_CHARS])
            if not isinstance(value, list) or present(value):
                self._empty.discard(name)
            elif name in added:
                self._empty.add(name)

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
    return "float64" if {a, b} == NUMBERS else "string"


def _agreed(name: str, declared: ColumnType, known: ColumnType) -> ColumnType:
    """Check that the declared type of a column agrees with its known type; return the latter.

    A column declared as int64 may have widened to float64.
    """
    if declared != known and (declared, known) != ("int64", "float64"):
        raise ConfigError(
            f"column_types: the column {name!r} is declared as {declared}, but it is {known} in "
            "the index. Remove it from column_types (--column-type), or build another index."
        )
    return known
