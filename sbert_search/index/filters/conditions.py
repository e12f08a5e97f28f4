"""Compiling an SQL condition over metadata into a function of a segment's columns.

`sqlglot` parses the condition. Only these elements are accepted: columns, lower() and upper() of a
column, literals, comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, ILIKE, and IS or IS NOT with NULL,
TRUE or FALSE. A missing value is NULL. AND, OR and NOT follow SQL's three-valued logic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sqlglot import exp

from sbert_search.errors import QueryError
from sbert_search.index.documents import OWN_COLUMNS
from sbert_search.index.filters.comparisons import (
    SWAPPED,
    compare,
    compare_columns,
    contains,
    is_in,
    like,
)
from sbert_search.index.filters.syntax import (
    KNOWN,
    METADATA,
    NUMBERS,
    OPERATORS,
    OWN,
    Columns,
    FilterText,
    read_literal,
    warn_of_texts_by_value,
)
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage.columns import ARROW_TYPES
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.records import Where

if TYPE_CHECKING:
    from sbert_search.index.storage.segments import Segment

Condition = Callable[[Mapping[str, pa.Array]], pa.Array]
"""Takes columns, by their names in the condition; returns true, false or null per document."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled condition."""

    condition: Condition
    columns: Mapping[str, ColumnType]  # those that it reads, by their names in the condition
    stored: Mapping[str, str]  # their names in a segment, by their names in the condition

    def matching(self, segment: Segment) -> NDArray[np.bool_]:
        """Mark the first passages of documents that meet the condition, bool (n_rows,).

        A column that the segment lacks is NULL. If a column has integers in this segment and floats
        in others, its values here are compared as integers.
        """
        marks = np.zeros(segment.n_rows, bool)
        answers = self.condition(document_columns(segment, self.columns, self.stored))
        marks[segment.firsts] = answers.fill_null(False).to_numpy(zero_copy_only=False)
        return marks


def parse(where: Where, columns: Mapping[str, ColumnType]) -> Filter:
    """Turn a condition such as ``year >= 2019 AND lang IN ('en', 'de')`` into a filter.

    A condition can name the metadata ``columns``, ``doc_id`` and ``title``. If a metadata column
    has one of these names, a condition names it ``meta.doc_id``, and the id of the document
    ``own.doc_id``. The message of a QueryError shows the condition with a mark below the position.
    """
    ambiguous = {name: columns[name] for name in OWN_COLUMNS if name in columns}
    prefixed = {METADATA + name: kind for name, kind in ambiguous.items()} | {
        OWN + name: OWN_COLUMNS[name] for name in ambiguous
    }
    known = {**columns, **OWN_COLUMNS, **prefixed}
    stored = stored_names(columns) | {
        prefix + name: part + name
        for name in ambiguous
        for prefix, part in ((METADATA, columns_of.PREFIX), (OWN, ""))
    }
    text = FilterText(where, known)
    try:
        tree = text.tree()
        readable = Columns(text, known, ambiguous.keys(), prefixed.keys() & columns.keys())
        condition = _Compiler(text, readable).condition(tree)
        text.require_supported(tree)
    except RecursionError:
        raise QueryError("The filter is nested too deeply; use fewer parentheses.") from None
    return Filter(condition, readable.used, stored)


def stored_names(columns: Iterable[str]) -> dict[str, str]:
    """Map metadata columns and fields of every document to the names that segments store."""
    return {name: columns_of.PREFIX + name for name in columns} | {n: n for n in OWN_COLUMNS}


def document_columns(
    segment: Segment, columns: Mapping[str, ColumnType], stored: Mapping[str, str]
) -> dict[str, pa.Array]:
    """Read columns of a segment's documents in its own types; null where it lacks a column."""
    stored = {name: stored[name] for name in columns}
    present = columns_of.schema(segment.record.columns).names
    table = segment.table([name for name in stored.values() if name in present])
    if segment.record.n_docs < segment.n_rows:
        table = table.take(pa.array(segment.firsts))
    return {
        name: table.column(stored[name]).combine_chunks()
        if stored[name] in present
        else pa.nulls(segment.record.n_docs, ARROW_TYPES[kind])
        for name, kind in columns.items()
    }


class _Compiler:
    """Compiles nodes of the parsed condition into functions of the columns."""

    def __init__(self, text: FilterText, columns: Columns) -> None:
        self._text, self._refuse = text, text.refuse
        self._column, self._any_column = columns.read_scalar, columns.read

    def condition(self, node: exp.Expr) -> Condition:
        if isinstance(node, exp.Paren):
            return self.condition(node.this)
        if isinstance(node, exp.And | exp.Or):
            return self._joined(node)
        if isinstance(node, exp.Not):
            return _inverted(self.condition(node.this))
        if isinstance(node, exp.Column):
            return self._flag(node)
        if type(node) in OPERATORS:
            return self._comparison(node)
        truth = self._predicate(node)
        return _inverted(truth) if node.args.get("negate") else truth

    def _joined(self, node: exp.And | exp.Or) -> Condition:
        """Compile a whole chain of AND or OR in a loop; recursion would fail for thousands."""
        kind, parts = type(node), []
        rest: exp.Expr = node
        while type(rest) is kind:
            parts.append(self.condition(rest.expression))
            rest = rest.this
        parts.append(self.condition(rest))
        join = pc.and_kleene if kind is exp.And else pc.or_kleene
        return lambda columns: reduce(join, (part(columns) for part in parts))

    def _flag(self, node: exp.Column) -> Condition:
        column = self._column(node)
        if column.kind != "bool":
            self._refuse(
                node, f"the column {node.name!r} is {column.kind}; compare it with a value"
            )
        return column.values

    def _comparison(self, node: exp.Expr) -> Condition:
        operator = OPERATORS[type(node)]
        left, right = node.this, node.expression
        if _is_column(right) and not _is_column(left):
            left, right, operator = right, left, SWAPPED.get(operator, operator)
        column = self._column(left)
        if not _is_column(right):
            value = read_literal(right, column.kind, self._text)
            ordered = operator not in ("=", "<>") and isinstance(value, str)

            def compared(columns: Mapping[str, pa.Array]) -> pa.Array:
                values = column.values(columns)
                if ordered:
                    warn_of_texts_by_value(column.name, values, str(value))
                return compare(values, operator, value)

            return compared
        other = self._column(right)
        if column.kind != other.kind and not {column.kind, other.kind} <= NUMBERS:
            self._refuse(
                right,
                f"a {column.kind} column cannot be compared with a {other.kind} column",
            )
        return lambda columns: compare_columns(
            column.values(columns), operator, other.values(columns)
        )

    def _predicate(self, node: exp.Expr) -> Condition:
        if isinstance(node, exp.Between):
            return self._between(node)
        if isinstance(node, exp.Like | exp.ILike):
            return self._like(node)
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, exp.In) and node.args.get("field"):
            return self._contains(node)
        if isinstance(node, exp.In):
            if not _is_column(node.this) and any(map(_is_column, node.expressions[:1])):
                self._refuse(
                    node.expressions[0], "write a list column without parentheses: 'x' IN tags"
                )
            column = self._column(node.this)
            values = [read_literal(item, column.kind, self._text) for item in node.expressions]
            return lambda columns: is_in(column.values(columns), values)
        self._refuse(node, KNOWN)

    def _contains(self, node: exp.In) -> Condition:
        field = node.args["field"]
        column = self._any_column(field)
        if column.item is None:
            self._refuse(
                field, f"the column {column.name!r} is {column.kind}, not a list; compare it by ="
            )
        if _is_column(node.this):
            self._refuse(node.this, "write a value before IN, as in 'x' IN tags")
        value = read_literal(node.this, column.item, self._text)
        return lambda columns: contains(columns[column.name], value, column.cased)

    def _between(self, node: exp.Between) -> Condition:
        column = self._column(node.this)
        low, high = (
            read_literal(node.args[end], column.kind, self._text) for end in ("low", "high")
        )

        def within(columns: Mapping[str, pa.Array]) -> pa.Array:
            values = column.values(columns)
            warn_of_texts_by_value(column.name, values, str(low))
            return pc.and_kleene(compare(values, ">=", low), compare(values, "<=", high))

        return within

    def _like(self, node: exp.Like | exp.ILike) -> Condition:
        column = self._column(node.this)
        if column.kind != "string":
            self._refuse(node, f"LIKE needs a text column; {column.name!r} is {column.kind}")
        pattern = read_literal(node.expression, column.kind, self._text)
        try:
            match = like(str(pattern), ignore_case=isinstance(node, exp.ILike))
        except ValueError as error:
            self._refuse(node.expression, str(error))
        return lambda columns: match(column.values(columns))

    def _is(self, node: exp.Is) -> Condition:
        column = self._any_column(node.this)
        if isinstance(node.expression, exp.Null):
            return lambda columns: columns[column.name].is_null()
        if isinstance(node.expression, exp.Boolean) and column.kind == "bool":
            flag = bool(node.expression.this)
            return lambda columns: compare(columns[column.name], "=", flag).fill_null(False)
        self._refuse(node, "write IS NULL or IS NOT NULL")


def _is_column(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column | exp.Lower | exp.Upper)


def _inverted(condition: Condition) -> Condition:
    return lambda columns: pc.invert(condition(columns))
