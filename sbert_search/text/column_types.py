"""The type of one value of a metadata column, and the conversion of a value to another type."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any, Literal, cast, get_args

from sbert_search.config import unknown_name
from sbert_search.errors import ConfigError
from sbert_search.records import MetadataValue, ScalarValue
from sbert_search.text.formats.rows import BadRow, as_one_text, check_text, excerpt

ColumnType = Literal[
    "string", "int64", "float64", "bool", "timestamp", "date",
    "list[string]", "list[int64]", "list[float64]",
    "list[bool]", "list[timestamp]", "list[date]",
]  # fmt: skip
"""Types of metadata columns.

Some values are stored as JSON text, in a ``string`` column: objects, and lists whose values have no
common type or are themselves lists or objects.
"""

NUMBERS = {"int64", "float64"}

_TYPE_OF: Mapping[type, ColumnType] = {
    str: "string",
    int: "int64",
    float: "float64",
    bool: "bool",
    datetime: "timestamp",
    date: "date",
}
_ALIASES = {"text": "string", "int": "int64", "float": "float64", "list": "list[string]"}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")  # no leading zeros: "007" is a code, not a number
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
UNIT = r"[^\d\s.,;:'\u2019_+\[\]-]{1,4}"  # such as € or kg
# The separator of thousands or "", and that of decimals or None, between units.
_NUMBER_FORMAT = re.compile(
    rf"(?P<before>{UNIT})?\s?1([^\w+-]?)234(?:([^\w\s+-])56)?\s?(?P<after>{UNIT})?"
)
_SAME = (" \xa0\u202f", "'\u2019")  # separators of thousands that look alike
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1
_ALL_EXACT = 1 << 53  # float64 represents all integers up to 2**53 exactly, then only some
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_type(declared: str) -> ColumnType:
    """Return the column type that a user names: ``text``, ``int``, ``list[date]``, ...

    A format of the texts may follow, as in ``date:%d.%m.%Y``; it is checked.
    """
    name, form = split_format(declared)
    inner = re.fullmatch(r"list\[(.*)\]", name)
    stored = f"list[{_ALIASES.get(inner[1], inner[1])}]" if inner else _ALIASES.get(name, name)
    if stored not in get_args(ColumnType):
        known = ["text", "int", "float", "bool", "date", "timestamp", "list[text]", "list[int]"]
        raise ConfigError(unknown_name(name, name, known, "column type"))
    kind = cast(ColumnType, stored)
    if form and not _is_format(form, element_type(kind) or kind):
        raise ConfigError(
            f"{declared!r} has no format of {name}; write one such as date:%d.%m.%Y, "
            "timestamp:%d.%m.%Y %H:%M, float:1.234,56 or int:1,234."
        )
    return kind


def split_format(declared: str) -> tuple[str, str]:
    """Split ``date:%d.%m.%Y`` or ``list[date:%d.%m.%Y]`` into the type and the format, or ""."""
    name, _, form = declared.partition(":")
    is_list = name.startswith("list[") and form.endswith("]")
    return (f"{name}]", form[:-1]) if is_list else (name, form)


def _is_format(form: str, kind: ColumnType) -> bool:
    if kind in NUMBERS:
        found = _NUMBER_FORMAT.fullmatch(form)
        return bool(found and found[2] != found[3] and not (kind == "int64" and found[3]))
    example = datetime(2034, 12, 31, tzinfo=UTC)
    try:
        shown = datetime.strptime(example.strftime(form), form)
    except ValueError:
        return False
    return kind in ("date", "timestamp") and shown.replace(tzinfo=UTC) == example


def in_default_format(text: str, form: str, kind: ColumnType) -> str:
    """Rewrite a number or a time of a format as `parse_value` reads it; "": it does not fit.

    A time that does not fit is left as it is, since it may be one of ISO 8601.
    """
    text = text.strip()
    if kind not in NUMBERS:
        try:
            moment = datetime.strptime(text, form)
        except ValueError:
            return text
        is_date = kind == "date" and moment.time() == time()
        return moment.date().isoformat() if is_date else moment.isoformat()
    shape = _NUMBER_FORMAT.fullmatch(form)
    before, group, point, after = shape.groups("") if shape else ("", "", "", "")
    group = next((f"[{same}]" for same in _SAME if group and group in same), re.escape(group))
    digits = rf"([0-9]+|[0-9]{{1,3}}(?:{group}[0-9]{{3}})+)"
    decimals = rf"(?:{re.escape(point)}([0-9]+))?" if point else "()"
    begin = rf"{re.escape(before)}\s*([-+]?)" if before else "()"
    end = rf"\s*{re.escape(after)}" if after else ""
    number = re.fullmatch(rf"([-+]?){begin}{digits}{decimals}{end}", text)
    if number is None:
        return ""
    sign, inner_sign, whole, part = number.groups("")
    return f"{sign}{inner_sign}{re.sub('[^0-9]', '', whole)}{part and f'.{part}'}"


def element_type(kind: ColumnType) -> ColumnType | None:
    """Return the type of the values of a list column; None for any other column."""
    return cast(ColumnType, kind[5:-1]) if kind.startswith("list[") else None


def list_of(kind: ColumnType) -> ColumnType:
    """Return the type of a list of values of a type."""
    return cast(ColumnType, f"list[{kind}]")


def type_of(value: object, name: str) -> ColumnType:
    """Return the column type of a typed value, such as one of JSON; CSV cells are not typed.

    A list without values, apart from nulls, is a ``list[string]``. A list that must be stored as
    JSON text is a ``string`` (see `ColumnType`). If no type holds the value, `BadRow` is raised.
    """
    if isinstance(value, list):
        return _type_of_list(value, name)
    kind = _TYPE_OF.get(type(value))
    if kind is None:
        raise BadRow(
            f"column {name!r} contains a {type(value).__name__}, which no column type supports",
            value,
        )
    if kind == "float64" and not math.isfinite(cast(float, value)):
        raise BadRow(f"column {name!r} has a value that is not finite", value)
    if kind == "int64" and not _MIN_INT64 <= cast(int, value) <= MAX_INT64:
        raise BadRow(f"column {name!r} has an integer beyond 64 bits", value)
    return kind


def type_of_cell(cell: str) -> ColumnType:
    """Return the type of an untyped cell, such as one of CSV: the first that can represent it.

    The order is int64, float64, date, bool, string; an integer beyond 64 bits is a string.
    """
    if _INTEGER.fullmatch(cell):
        # An int64 has at most 20 characters. `int` refuses a text of over 4,300 digits.
        return "int64" if len(cell) < 21 and _MIN_INT64 <= int(cell) <= MAX_INT64 else "string"
    if _FLOAT.fullmatch(cell) and math.isfinite(float(cell)):
        return "float64"
    if _DATE.fullmatch(cell) and parse_value(cell, "date") is not None:
        return "date"
    return "bool" if cell.lower() in ("true", "false") else "string"


def present(values: Sequence[object]) -> list[Any]:
    """Return the values of a list without null and NaN, which stand for missing values."""
    return [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]


def exact_as_float(integer: int | str) -> bool:
    """Whether float64 represents an integer exactly."""
    whole = int(integer)
    if -_ALL_EXACT <= whole <= _ALL_EXACT:
        return True
    try:
        return int(float(whole)) == whole
    except OverflowError:  # above the largest float64
        return False


def as_type(
    value: object, own: ColumnType, kind: ColumnType, typed: bool, name: str
) -> MetadataValue:
    """Convert a value of the type ``own`` to the type of its column; `BadRow` if it does not fit.

    ``typed``: the value has a type, as in JSON; otherwise it is an untyped cell, as in CSV.
    """
    if isinstance(value, list):
        return _list_as_type(value, own, kind, name)
    if kind == "string" and not typed:
        return str(value)
    if own == kind:
        return cast(ScalarValue, value) if typed else parse_value(str(value), kind)
    if kind == "float64" and own == "int64":
        if exact_as_float(cast(int, value)):
            return float(cast(int, value))
        raise BadRow(f"column {name!r} is of type float64, which would round this integer", value)
    if kind == "int64" and own == "float64":
        reason = "cannot become float64, which would round some of its integers"
        raise BadRow(f"column {name!r} is of type int64 and {reason}", value)
    if kind in ("timestamp", "date") and isinstance(value, str) and own in ("string", "date"):
        moment = parse_value(value, kind)
        if moment is not None:
            return moment
    wanted, inner = "", element_type(kind)
    if inner is not None:
        like = [str(value)] if inner == "string" else [value] if inner == own else []
        wanted = f"; it must be a list, such as {excerpt(like)}"
    raise BadRow(f"column {name!r} is of type {kind}, this value is of type {own}{wanted}", value)


def as_text(value: object, name: str) -> str:
    """Write a value as text: a text unchanged, a date or a time in ISO 8601, others as JSON."""
    if isinstance(value, str):
        return check_text(value, name)
    if isinstance(value, date):  # or its subclass datetime
        return value.isoformat()
    try:
        return check_text(json.dumps(value, ensure_ascii=False, default=str), name)
    except RecursionError:
        raise BadRow(f"{name!r} is nested too deep") from None


def _type_of_list(values: list[object], name: str) -> ColumnType:
    kinds = {_TYPE_OF.get(type(value), "string") for value in present(values)}
    if kinds == NUMBERS and all(exact_as_float(v) for v in values if isinstance(v, int)):
        kinds = {"float64"}
    if len(kinds) > 1 or any(isinstance(value, (list, dict)) for value in values):
        return "string"
    try:
        for value in present(values):
            type_of(value, name)
    except BadRow:
        return "string"
    return list_of(kinds.pop()) if kinds else "list[string]"


def _list_as_type(
    values: list[object], own: ColumnType, kind: ColumnType, name: str
) -> MetadataValue:
    inner, items = element_type(kind), present(values)
    if inner is None and kind == "string":
        return as_text(values, name)
    fits = kind == own or (kind, own) == ("list[float64]", "list[int64]")
    fits |= kind in ("list[timestamp]", "list[date]") and own in ("list[string]", "list[date]")
    if inner is not None and (fits or not items):
        converted = (as_type(item, type_of(item, name), inner, True, name) for item in items)
        texts = (check_text(item, name) if isinstance(item, str) else item for item in converted)
        return cast(MetadataValue, list(texts))
    wanted = ""
    if inner is None and items:
        like = as_one_text(items) if own == "list[string]" else excerpt(items[0])
        lists = f"the index be built with the column type {list_of(kind)}"
        wanted = f"; it must be one value, such as {like}, or {lists}"
    raise BadRow(f"column {name!r} is of type {kind}, this value is of type {own}{wanted}", values)


def parse_value(text: str, kind: ColumnType) -> ScalarValue | None:
    """Parse a text as a value of a type other than string and list; None if this is impossible."""
    try:
        return _PARSE[kind](text.strip())
    # OverflowError: a time whose year in UTC is outside 1 to 9999. KeyError: text that is no bool.
    except (ValueError, OverflowError, KeyError):
        return None


def _time(text: str) -> datetime:
    # `fromisoformat` would read 13 digits, such as a Unix time in ms, as a date and a time.
    if text.isdecimal() and len(text) > 8:
        raise ValueError(text)
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _integer(text: str) -> int:
    if not re.fullmatch(r"[-+]?[0-9]{1,100}", text):
        raise ValueError(text)
    return int(text)


def _float(text: str) -> float:
    if not re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text):
        raise ValueError(text)
    return float(text)


_PARSE: Mapping[ColumnType, Callable[[str], ScalarValue]] = {
    "int64": _integer,
    "float64": _float,
    "bool": lambda text: FLAGS[text.lower()],
    "timestamp": _time,
    "date": date.fromisoformat,
}
