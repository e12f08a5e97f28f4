"""Haystack's filters as conditions of an index.

A field is ``id`` or the name of metadata, with or without ``meta.`` before it; ``meta.a.b`` is the
value ``b`` of the mapping ``a``. ``==`` and ``in`` with ``None`` match documents without a value.
Texts can be ordered only if they are ISO dates, whose times the index stores in further columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from haystack.errors import FilterError

from sbert_search.integrations.conditions import Conditions, all_of, any_of, none_of
from sbert_search.integrations.records import plain_value

TIMES = "_time."  # prefix of a field's name: the column with the times of its ISO dates
_OWN = ("content", "blob", "score", "embedding", "sparse_embedding")
_ORDERS = ("<", "<=", ">", ">=")


def where_of(filters: Mapping[str, object] | None, columns: Conditions) -> str | None:
    """Write a filter as a condition; None: no filter.

    Raises:
        FilterError: A key is missing, an operator is unknown, or its value is of a wrong type.
    """
    return _condition(filters, columns) if filters else None


def time_of(value: object) -> datetime | None:
    """Return the time of an ISO date, in UTC; None for other values.

    The date must name a day. Without a time zone, it is read as UTC.
    """
    if isinstance(value, str):
        if len(value) < 10 or value[4] != "-" or value[7] != "-":
            return None
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    try:
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:  # in UTC, it is before the year 1 or after the year 9999
        return None


def _condition(node: object, columns: Conditions) -> str:
    if not isinstance(node, Mapping):
        raise FilterError(f"A filter is {node!r}; it must be a mapping.")
    needed = ("field", "operator", "value") if "field" in node else ("operator", "conditions")
    for key in needed:
        if key not in node:
            raise FilterError(f"'{key}' key missing in {dict(node)}")
    if "field" in node:
        return _comparison(str(node["field"]), node["operator"], node["value"], columns)
    parts = [_condition(part, columns) for part in node["conditions"]]
    if node["operator"] == "OR":
        return any_of(parts) if parts else columns.never
    joined = all_of(parts) if parts else columns.always
    if node["operator"] == "AND":
        return joined
    if node["operator"] == "NOT":
        return none_of(joined)
    raise FilterError(f"Unknown logical operator {node['operator']!r}; use AND, OR or NOT.")


def _comparison(field: str, operator: object, value: object, columns: Conditions) -> str:
    name = field.removeprefix("meta.")
    if field == name and field in _OWN:
        raise FilterError(f"The field {field!r} cannot be filtered; use id or metadata.")
    if operator in ("==", "!="):
        found = _equal(name, value, columns, is_id=field == "id")
        return found if operator == "==" else none_of(found)
    if operator in ("in", "not in"):
        if not isinstance(value, list):
            raise FilterError(f"The operator {operator!r} has {value!r}; it needs a list.")
        parts = [_equal(name, each, columns, is_id=field == "id") for each in value]
        found = any_of(parts) if parts else columns.never
        return found if operator == "in" else none_of(found)
    if operator in _ORDERS:
        return _ordered(name, str(operator), value, columns)
    raise FilterError(f"Unknown comparison operator {operator!r}.")


def _equal(name: str, value: object, columns: Conditions, *, is_id: bool) -> str:
    if is_id:
        return columns.id_in([str(value)])
    value = plain_value(value)
    if isinstance(value, (list, dict)):
        raise FilterError(f"{name!r} cannot be compared with {value!r}; compare it with a value.")
    found = columns.equals(name, value)
    if (moment := time_of(value)) is None:
        return found
    return any_of([found, columns.equals(TIMES + name, moment)])


def _ordered(name: str, order: str, value: object, columns: Conditions) -> str:
    value = plain_value(value)
    if value is None:
        return columns.never
    if isinstance(value, (str, datetime)):
        if (moment := time_of(value)) is None:
            raise FilterError(
                f"{name!r} cannot be compared by {order} with {value!r}: texts can only be ordered "
                "if they are ISO dates."
            )
        found: Sequence[str] = [
            columns.compares(column, order, moment) for column in (name, TIMES + name)
        ]
        return any_of(found)
    if not isinstance(value, (int, float)):
        raise FilterError(f"{name!r} cannot be compared by {order} with {value!r}.")
    return columns.compares(name, order, value)
