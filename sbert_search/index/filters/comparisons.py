"""SQL comparisons of Arrow arrays: exact for integers and floats; LIKE. NULL gives NULL.

Arrow rounds or refuses an int64 that it compares with a float64. This module compares the exact
values, as sqlite does (docs/decisions.md: Filters compare exact numbers).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sbert_search.index.storage.columns import ABOVE_INT64

Operator = str
Change = Callable[[pa.Array], pa.Array]
Value = int | float | str | bool | datetime | date
OPERATORS: Mapping[Operator, Callable[[Any, Any], pa.Array]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
SWAPPED: Mapping[Operator, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
INT64 = np.iinfo(np.int64)

_NUMBERS = (pa.int64(), pa.float64())


def compare(column: pa.Array, operator: Operator, value: Value) -> pa.Array:
    """Compare each value of a column with a literal: bool, null where the column is null.

    The literal has the column's type; for a numeric column it is an int or a float, even infinite.
    """
    if column.type not in _NUMBERS:
        return OPERATORS[operator](column, pa.scalar(value, column.type))
    assert isinstance(value, int | float)
    same = _same_number(value, column.type)
    if same is not None:
        return OPERATORS[operator](column, pa.scalar(same, column.type))
    if operator in ("=", "<>"):
        return constant(column, operator == "<>")
    less = operator in ("<", "<=")
    below = _next_below(value, column.type)
    if below is None:
        return constant(column, not less)
    return OPERATORS["<=" if less else ">"](column, pa.scalar(below, column.type))


def compare_columns(left: pa.Array, operator: Operator, right: pa.Array) -> pa.Array:
    """Compare columns of one type, or of integers and floats; null where either is null."""
    if left.type == right.type:
        return OPERATORS[operator](left, right)
    if right.type == pa.int64():
        return compare_columns(right, SWAPPED.get(operator, operator), left)
    order = pa.array(_order(_values(left), _values(right)))
    valid = pc.and_(left.is_valid(), right.is_valid())
    return _where(valid, OPERATORS[operator](order, pa.scalar(0, pa.int8())))


def is_in(column: pa.Array, values: Sequence[Value]) -> pa.Array:
    """Return whether each value of a column equals one of some literals, as in `compare`."""
    candidates: list[Value] = list(values)
    if column.type in _NUMBERS:
        same = (_same_number(v, column.type) for v in values if isinstance(v, int | float))
        candidates = [value for value in same if value is not None]
        if column.type == pa.float64() and 0 in candidates:
            candidates += [-0.0, 0.0]  # equal values with different hashes in Arrow
    marks = pc.is_in(column, pa.array(candidates, column.type))
    return _where(column.is_valid(), marks)


def contains(lists: pa.Array, value: Value, change: Change = lambda values: values) -> pa.Array:
    """Return whether each list of a column contains a value that equals a literal, as in `compare`.

    ``change`` is applied to all values of all lists before the comparison.
    """
    offsets = lists.offsets.to_numpy()
    values = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
    if not len(values):  # a segment of empty lists may have another type than the index
        return constant(lists, False)
    equal = compare(change(values), "=", value).fill_null(False).to_numpy(zero_copy_only=False)
    # Few values are equal as a rule, so finding their lists is faster than a sum over all values.
    found = np.zeros(len(lists), bool)
    found[np.searchsorted(offsets, np.flatnonzero(equal) + offsets[0], "right") - 1] = True
    return _where(lists.is_valid(), pa.array(found))


def constant(column: pa.Array, value: bool) -> pa.Array:
    """Return ``value`` for each row where the column has a value, and null for the other rows."""
    return _where(column.is_valid(), pa.scalar(value))


def _where(valid: pa.Array, answers: pa.Array | pa.Scalar) -> pa.Array:
    # The null is not a constant of the module, since pa.scalar imports pandas.
    return pc.if_else(valid, answers, pa.scalar(None, pa.bool_()))


def _same_number(value: int | float, kind: pa.DataType) -> int | float | None:
    """Return the value of int64 or float64 that equals a literal; None if there is none."""
    if kind == pa.int64():
        whole = isinstance(value, int) or value.is_integer()
        return int(value) if whole and INT64.min <= value <= INT64.max else None
    return float(value) if float(value) == value else None


def _next_below(value: int | float, kind: pa.DataType) -> int | float | None:
    """Return the largest value of a type that is less than a literal; None: all are above it.

    The caller has checked that no value of the type equals the literal.
    """
    if kind == pa.int64():
        if value < INT64.min:
            return None
        return INT64.max if value > INT64.max else math.floor(value)
    near = float(value)
    return near if near < value else math.nextafter(near, -math.inf)


def _values(column: pa.Array) -> NDArray[Any]:
    values: NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
    return values


def _order(integers: NDArray[np.int64], floats: NDArray[np.float64]) -> NDArray[np.int8]:
    """Compare each integer with the float in the same row: -1 below, 0 equal, 1 above.

    Rounding to float64 keeps the order, so a rounded integer that differs from the float decides.
    If they are equal, the float is whole, and is compared as an integer with the exact one.
    """
    rounded = integers.astype(np.float64)
    order = (rounded > floats).astype(np.int8) - (rounded < floats)
    equal = rounded == floats
    order[equal & (floats >= ABOVE_INT64)] = -1  # 2**63 is above all int64 and cannot be converted
    ties = equal & (floats < ABOVE_INT64)
    whole = floats[ties].astype(np.int64)
    order[ties] = (integers[ties] > whole).astype(np.int8) - (integers[ties] < whole)
    return order


MAX_PATTERN = 10_000  # characters; Arrow's engine refuses some regular expressions of 50,000
_MARKS = {"%": "(?s:.*)", "_": "(?s:.)"}
_RUN = re.compile(r"(?P<any>%)[%]*|(?P<one>_)|\\(?P<escaped>.)|(?P<text>[^%_\\]+)", re.DOTALL)

Match = Callable[[pa.Array], pa.Array]


def like(pattern: str, *, ignore_case: bool) -> Match:
    """Return a function that tells for each text whether it matches a pattern; null for null.

    ValueError if the pattern has more than `MAX_PATTERN` characters or ends in a backslash.
    ``ignore_case`` uses Unicode's simple case folding.
    """
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"the pattern has more than {MAX_PATTERN:,} characters")
    parts = list(_parts(pattern))
    if not ignore_case and (simple := _simple(parts)):
        return simple
    flag = "(?i)" if ignore_case else ""
    body = "".join(_MARKS[mark] if mark else re.escape(text) for mark, text in parts)
    expression = rf"{flag}\A{body}\z"
    return lambda texts: pc.match_substring_regex(texts, expression)


def _parts(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a pattern: ``(wildcard, "")``, or ``("", text)`` without escapes."""
    text, end = "", 0
    for part in _RUN.finditer(pattern):
        end = part.end()
        if mark := part["any"] or part["one"]:
            if text:
                yield "", text
            yield mark, ""
            text = ""
        else:
            text += part["escaped"] or part["text"]
    if end < len(pattern):
        raise ValueError("a backslash at the end of a pattern escapes nothing; write two")
    if text:
        yield "", text


def _simple(parts: list[tuple[str, str]]) -> Match | None:
    """Return a function without a regular expression for x, x%, %x and %x%; None for the rest."""
    marks = [mark for mark, _ in parts]
    text = "".join(text for _, text in parts)
    match marks:
        case [] | [""]:
            return lambda texts: pc.equal(texts, pa.scalar(text, texts.type))
        case ["", "%"]:
            return lambda texts: pc.starts_with(texts, text)
        case ["%", ""]:
            return lambda texts: pc.ends_with(texts, text)
        case ["%", "", "%"]:
            return lambda texts: pc.match_substring(texts, text)
    return None
