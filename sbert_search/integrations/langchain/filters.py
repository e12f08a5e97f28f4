"""LangChain's filters, in the form of most of its vector stores, as conditions of an index.

``{"year": {"$gte": 2019}, "kind": "class"}`` means both conditions; ``$and``, ``$or`` and ``$not``
join filters. ``$like`` and ``$ilike`` look for a substring, without wildcards. A filter that is a
string is a condition of the index itself, such as ``year >= 2019``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from sbert_search.config import unknown_name
from sbert_search.errors import QueryError
from sbert_search.integrations.records import Conditions, all_of, any_of, none_of

Filter: TypeAlias = str | Mapping[str, object]
"""A condition of the index, or a mapping of metadata names to values or operators."""

_ORDERS = {"$lt": "<", "$lte": "<=", "$gt": ">", "$gte": ">="}
_Operator = Callable[[Conditions, str, object], str]


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
    "$like": lambda columns, name, value: columns.has_text(name, str(value)),
    "$ilike": lambda columns, name, value: columns.has_text(name, str(value), ignore_case=True),
    **{operator: _order(sign) for operator, sign in _ORDERS.items()},
}


def where_of(filters: Filter | None, columns: Conditions) -> str | None:
    """Write a filter as a condition; None: no filter."""
    if isinstance(filters, str):
        return filters or None
    return _mapping(filters, columns) if filters else None


def _mapping(filters: object, columns: Conditions) -> str:
    if not isinstance(filters, Mapping) or not filters:
        raise QueryError(f"A filter is {filters!r}; write it as {{'year': {{'$gte': 2019}}}}.")
    return all_of(_entry(name, value, columns) for name, value in filters.items())


def _entry(name: str, value: object, columns: Conditions) -> str:
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


def _between(columns: Conditions, name: str, value: object) -> str:
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
