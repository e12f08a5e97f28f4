"""Filters whose values are apart from their text, written as the text of a condition.

``("brand = ?", ["O'Neil"])`` gives the values of the question marks. ``{"year": {"$gte": 2019},
"kind": "class"}`` means both conditions; ``$and``, ``$or`` and ``$not`` join filters, and ``$like``
and ``$ilike`` look for a substring, without wildcards. The conditions of a mapping are true or
false for every document, never NULL, so that they can be negated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from enum import Enum

from sbert_search.config import unknown_name
from sbert_search.errors import QueryError
from sbert_search.records import Where


def condition_text(where: Where, columns: ColumnConditions | None = None) -> str:
    """Return a filter as one text; a text is returned unchanged.

    Args:
        where: The filter.
        columns: Writes the conditions of a mapping; None: for the columns that the index has.

    Raises:
        QueryError: The filter is neither of the three forms, or has a value of another type.
    """
    if isinstance(where, tuple | list) and len(where) == 2 and isinstance(where[0], str):
        return _bound(*where)
    if isinstance(where, Mapping):
        try:
            return _mapping(where, columns or ColumnConditions())
        except RecursionError:
            raise QueryError("The filter is nested too deeply.") from None
    return where  # of another type, it is refused as the text is parsed


def plain_value(value: object) -> object:
    """Return the value of a NumPy scalar or of an enumeration's member, also inside a list."""
    import numpy as np  # loads here, not for --help

    if isinstance(value, list):
        return [plain_value(item) for item in value]
    value = value.value if isinstance(value, Enum) else value
    return value.item() if isinstance(value, np.generic) else value


def literal(value: object) -> str:
    """Return the SQL literal of a text, a number, a flag, a date or a time."""
    value = plain_value(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    if isinstance(value, float) and not math.isnan(value):
        return float.__repr__(value)
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return f"'{moment.isoformat()}'"
    if isinstance(value, date):
        return f"'{value.isoformat()}'"
    raise QueryError(
        f"The filter has the value {value!r:.100} of type {type(value).__name__}; pass a text, a "
        "number, True, False, a date or a time."
    )


# A question mark, and before it what may hold one that is no place of a value.
_PLACES = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|(?P<place>\?)""")


def _bound(text: str, values: Sequence[object]) -> str:
    """Write values in place of the question marks of a condition; a list as ``(1, 2)``."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise QueryError(f"The filter has the values {values!r:.100}; pass a list of them.")
    n_places = sum(found["place"] is not None for found in _PLACES.finditer(text))
    if n_places != len(values):
        raise QueryError(
            f"The filter has {n_places} question marks and {len(values)} values; pass one value "
            "for each. The values of IN are one list. A question mark in quotes is a text."
        )
    rest: Iterator[object] = iter(values)
    return _PLACES.sub(lambda found: _parameter(next(rest)) if found["place"] else found[0], text)


def _parameter(value: object) -> str:
    if value is None:
        return "NULL"
    if not isinstance(value, list | tuple):
        return literal(value)
    return f"({', '.join(map(literal, value))})"


class ColumnConditions:
    """Writes conditions over metadata columns."""

    def name(self, column: str) -> str:
        """Return the quoted name of a column."""
        return '"' + column.replace('"', '""') + '"'

    def is_null(self, column: str) -> str:
        """Match documents without a value in a column."""
        return f"{self.name(column)} IS NULL"

    def equals(self, column: str, value: object) -> str:
        """Match documents with this value in a column; None: without a value."""
        return self.is_null(column) if value is None else self.compares(column, "=", value)

    def is_in(self, column: str, values: Iterable[object]) -> str:
        """Match documents with one of these values in a column."""
        values = list(values)
        listed = ", ".join(literal(value) for value in values if value is not None)
        found = [self.known(column, f"{self.name(column)} IN ({listed})")] if listed else []
        if None in values:
            found.append(self.is_null(column))
        return any_of(found) if found else self.known(column, self.is_null(column))  # never

    def compares(self, column: str, order: str, value: object) -> str:
        """Match documents whose value in a column is ``=``, ``<``, ``<=``, ... another one."""
        return self.known(column, f"{self.name(column)} {order} {literal(value)}")

    def contains(self, column: str, value: object) -> str:
        """Match documents whose list in a column contains a value."""
        return self.known(column, f"{literal(value)} IN {self.name(column)}")

    def has_text(self, column: str, text: str, *, ignore_case: bool = False) -> str:
        """Match documents whose text in a column contains ``text``."""
        pattern = "".join(f"\\{each}" if each in "%_\\" else each for each in text)
        like = "ILIKE" if ignore_case else "LIKE"
        return self.known(column, f"{self.name(column)} {like} {literal(f'%{pattern}%')}")

    def known(self, column: str, condition: str) -> str:
        """Make a condition false for documents without a value in a column."""
        return f"({condition} AND {self.name(column)} IS NOT NULL)"


def all_of(conditions: Iterable[str]) -> str:
    """Join conditions by AND."""
    return f"({' AND '.join(conditions)})"


def any_of(conditions: Iterable[str]) -> str:
    """Join conditions by OR."""
    return f"({' OR '.join(conditions)})"


def none_of(condition: str) -> str:
    """Negate a condition."""
    return f"NOT ({condition})"


_ORDERS = {"$lt": "<", "$lte": "<=", "$gt": ">", "$gte": ">="}
_Operator = Callable[[ColumnConditions, str, object], str]


def _order(sign: str) -> _Operator:
    return lambda columns, name, value: columns.compares(name, sign, value)


_OPERATORS: Mapping[str, _Operator] = {
    "$eq": lambda columns, name, value: columns.equals(name, _one("$eq", value)),
    "$ne": lambda columns, name, value: none_of(columns.equals(name, _one("$ne", value))),
    "$in": lambda columns, name, value: columns.is_in(name, _some("$in", value)),
    "$nin": lambda columns, name, value: none_of(columns.is_in(name, _some("$nin", value))),
    "$between": lambda columns, name, value: _between(columns, name, value),
    "$exists": lambda columns, name, value: (
        none_of(columns.is_null(name)) if value else columns.is_null(name)
    ),
    "$contains": lambda columns, name, value: columns.contains(name, value),
    "$contains_any": lambda columns, name, value: any_of(
        [columns.contains(name, each) for each in _some("$contains_any", value)]
        or [columns.is_in(name, ())]
    ),
    "$like": lambda columns, name, value: columns.has_text(name, str(value)),
    "$ilike": lambda columns, name, value: columns.has_text(name, str(value), ignore_case=True),
    **{operator: _order(sign) for operator, sign in _ORDERS.items()},
}


def _mapping(filters: object, columns: ColumnConditions) -> str:
    if not isinstance(filters, Mapping) or not filters:
        raise QueryError(f"A filter is {filters!r}; write it as {{'year': {{'$gte': 2019}}}}.")
    return all_of(_entry(name, value, columns) for name, value in filters.items())


def _entry(name: str, value: object, columns: ColumnConditions) -> str:
    if name in ("$and", "$or"):
        parts = [_mapping(part, columns) for part in _list(name, value)]
        return all_of(parts) if name == "$and" else any_of(parts)
    if name == "$not":
        return none_of(_mapping(value, columns))
    if not isinstance(name, str):
        raise QueryError(f"A filter names {name!r}; the names of metadata are texts.")
    if name.startswith("$"):
        raise QueryError(unknown_name(name, name, ("$and", "$or", "$not"), "operator"))
    if not isinstance(value, Mapping):
        return columns.equals(name, _one("$eq", value))
    conditions = []
    for operator, operand in value.items():
        if operator not in _OPERATORS:
            raise QueryError(unknown_name(operator, operator, _OPERATORS, "operator"))
        conditions.append(_OPERATORS[operator](columns, name, operand))
    if not conditions:
        raise QueryError(f"The filter of {name!r} is empty; write an operator such as '$eq'.")
    return all_of(conditions)


def _between(columns: ColumnConditions, name: str, value: object) -> str:
    if len(bounds := _list("$between", value)) != 2:
        raise QueryError(
            f"The operator $between has {value!r}; it needs the lowest and the highest."
        )
    low, high = bounds
    return all_of([columns.compares(name, ">=", low), columns.compares(name, "<=", high)])


def _one(operator: str, value: object) -> object:
    if isinstance(value, (list, tuple, set, Mapping)):
        raise QueryError(
            f"The operator {operator} has {value!r}; it compares with one value. Use $in for "
            "several values, and $contains for a value in a list."
        )
    return value


def _some(operator: str, value: object) -> Sequence[object]:
    return [_one(operator, item) for item in _list(operator, value)]


def _list(operator: str, value: object) -> Sequence[object]:
    if not isinstance(value, (list, tuple)) or (operator in ("$and", "$or") and not value):
        raise QueryError(f"The operator {operator} has {value!r}; it needs a list.")
    return value
