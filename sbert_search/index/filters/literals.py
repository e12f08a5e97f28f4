"""Values in a filter: numbers, texts, flags, dates and times."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

from sqlglot import exp

from sbert_search.index.filters.comparisons import INT64, Value
from sbert_search.index.filters.syntax import FilterText, shortened
from sbert_search.index.storage.manifest import ColumnType

NUMBERS = {"int64", "float64"}

_NUMBER = re.compile(r"(?P<int>[0-9]+)|([0-9]+\.?|[0-9]*\.[0-9]+)(e[-+]?[0-9]+)?", re.IGNORECASE)
_EXAMPLES = {"date": "2024-12-31", "timestamp": "2024-12-31T23:59:59"}


def read_literal(node: exp.Expr, kind: ColumnType, text: FilterText) -> Value:
    """Read a value that a column is compared with.

    Args:
        node: The node of the value.
        kind: Type of the column, or of the values of a list column.
        text: The filter, for errors.

    Raises:
        QueryError: The node is not a value of this type.
    """
    if isinstance(node, exp.Null):
        text.refuse(node, "no value equals NULL; write IS NULL or IS NOT NULL")
    if kind in NUMBERS:
        return _number(node, kind, text)
    if kind == "bool" and isinstance(node, exp.Boolean):
        return bool(node.this)
    if kind == "bool" or not (isinstance(node, exp.Literal) and node.is_string):
        shown = "TRUE or FALSE" if kind == "bool" else "text in single quotes"
        text.refuse(node, f"the column is {kind}; compare it with {shown}")
    written = str(node.this)
    try:
        if kind == "date":
            return date.fromisoformat(written)
        return _time(written) if kind == "timestamp" else written
    except (ValueError, OverflowError):
        example = _EXAMPLES[kind]
        text.refuse(node, f"{shortened(written)!r} is not a {kind}; write it as {example}")


def _number(node: exp.Expr, kind: ColumnType, text: FilterText) -> int | float:
    """Read a number as int if it is written as an integer within int64, else as a float64."""
    negative = isinstance(node, exp.Neg)
    digits = node.this if negative else node
    if not isinstance(digits, exp.Literal) or digits.is_string:
        text.refuse(node, f"the column is {kind}; compare it with a number")
    written = _NUMBER.fullmatch(digits.name)
    if not written:
        text.refuse(node, f"{shortened(digits.name)!r} is not a number")
    sign = "-" * negative
    # An int64 has at most 19 digits after leading zeros; Python refuses to parse integers of
    # thousands of digits.
    significant = digits.name.lstrip("0") or "0"
    if written["int"] and len(significant) < 20:
        whole = int(sign + significant)
        if INT64.min <= whole <= INT64.max:
            return whole
    return float(sign + digits.name)


def _time(text: str) -> datetime:
    """Read an ISO 8601 time or date, in UTC if it names no zone, and convert it to UTC.

    Raises:
        ValueError: The text is no time, or has more than six decimals of a second.
        OverflowError: The time in UTC is before year 1 or after year 9999.
    """
    if re.search(r"[.,][0-9]{7}", text):
        raise ValueError("beyond microseconds")
    # Python would read some numbers of 13 digits, such as milliseconds since 1970, as a time.
    if text.isdecimal() and len(text) > 8:
        raise ValueError("digits only")
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
