"""LlamaIndex's metadata filters as conditions of an index.

They match the same nodes as in ``SimpleVectorStore``. A node without a value matches only ``!=``,
``nin`` and ``is_empty``. ``contains``, ``any`` and ``all`` look for substrings in a text column,
and for items in a list column.
"""

from __future__ import annotations

from collections.abc import Sequence

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from sbert_search.errors import QueryError
from sbert_search.integrations.conditions import Conditions, all_of, any_of, none_of

_ORDERS = {
    FilterOperator.LT: "<",
    FilterOperator.LTE: "<=",
    FilterOperator.GT: ">",
    FilterOperator.GTE: ">=",
}
_NEGATED = {FilterOperator.NE: FilterOperator.EQ, FilterOperator.NIN: FilterOperator.IN}
_TEXT = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)


def where_of(filters: MetadataFilters | None, columns: Conditions) -> str | None:
    """Write filters as a condition; None: no filter.

    Raises:
        QueryError: An operator has a value of a wrong type.
    """
    if filters is None or not filters.filters:
        return None
    parts = [
        (where_of(each, columns) or columns.always)
        if isinstance(each, MetadataFilters)
        else _condition(each.operator, each, columns)
        for each in filters.filters
    ]
    if filters.condition == FilterCondition.OR:
        return any_of(parts)
    return none_of(any_of(parts)) if filters.condition == FilterCondition.NOT else all_of(parts)


def _condition(operator: FilterOperator, each: MetadataFilter, columns: Conditions) -> str:
    name, value = each.key, each.value
    if operator in _NEGATED:
        return none_of(_condition(_NEGATED[operator], each, columns))
    if operator in _ORDERS:
        return columns.compares(name, _ORDERS[operator], value)
    if operator == FilterOperator.IS_EMPTY:
        return any_of([columns.is_null(name), columns.equals(name, "")])
    if operator in _TEXT:
        if not isinstance(value, str):
            raise QueryError(f"The filter {operator.value} of {name!r} has {value!r}, not a text.")
        ignore_case = operator == FilterOperator.TEXT_MATCH_INSENSITIVE
        return columns.has_text(name, value, ignore_case=ignore_case)
    if operator == FilterOperator.CONTAINS:
        return _contains(name, value, columns)
    if operator == FilterOperator.EQ:
        return _equal(name, value, columns)
    if not isinstance(value, list):
        raise QueryError(f"The filter {operator.value} of {name!r} has {value!r}; it needs a list.")
    return _of_list(operator, name, value, columns)


def _equal(name: str, value: object, columns: Conditions) -> str:
    if isinstance(value, list):
        raise QueryError(
            f"The filter of {name!r} compares lists, which an index cannot; use any or all."
        )
    return columns.never if value is None else columns.equals(name, value)


def _of_list(
    operator: FilterOperator, name: str, values: Sequence[object], columns: Conditions
) -> str:
    if operator == FilterOperator.IN:
        return columns.is_in(name, values)
    parts = [_contains(name, item, columns) for item in values]
    if operator == FilterOperator.ANY:
        return any_of(parts) if parts else columns.never
    if operator == FilterOperator.ALL:
        return all_of(parts) if parts else none_of(columns.is_null(name))
    raise QueryError(f"The filter operator {operator!r} is unknown.")


def _contains(name: str, value: object, columns: Conditions) -> str:
    if columns.kind(name) == "string" and isinstance(value, str):
        return columns.has_text(name, value)
    return columns.contains(name, value)
