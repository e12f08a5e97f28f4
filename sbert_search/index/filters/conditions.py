"""Compiling an SQL condition over metadata into a function of a segment's columns.

`sqlglot` parses the condition. Only these elements are accepted: columns, literals, comparisons,
AND, OR, NOT, IN, BETWEEN, LIKE, ILIKE and IS [NOT] NULL. A missing value is NULL, with SQL's
three-valued logic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sqlglot import exp

from sbert_search.config import unknown_name
from sbert_search.errors import QueryError
from sbert_search.index.filters.comparisons import (
    INT64,
    SWAPPED,
    Value,
    compare,
    compare_columns,
    is_in,
)
from sbert_search.index.filters.like import like
from sbert_search.index.filters.syntax import KNOWN, OPERATORS, FilterText, shortened
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage.columns import ARROW_TYPES
from sbert_search.index.storage.manifest import ColumnType

if TYPE_CHECKING:
    from sbert_search.index.storage.segments import Segment

# Fields of every document that a condition can name, in addition to the metadata columns.
OWN_COLUMNS: Mapping[str, ColumnType] = {"doc_id": "string", "title": "string"}

Condition = Callable[[Mapping[str, pa.Array]], pa.Array]
"""Maps columns, by the names in the condition, to true, false or null for each document."""

# Prefixes that tell a metadata column from the document's own field of the same name.
_METADATA, _OWN = "meta.", "own."

_NUMBERS = {"int64", "float64"}
_NUMBER = re.compile(r"(?P<int>[0-9]+)|([0-9]+\.?|[0-9]*\.[0-9]+)(e[-+]?[0-9]+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled condition.

    Attributes:
        condition: The compiled function.
        columns: The columns that it reads, with their types, by their names in the condition.
        stored: Names of these columns in a segment, by their names in the condition.
    """

    condition: Condition
    columns: Mapping[str, ColumnType]
    stored: Mapping[str, str]

    def matching(self, segment: Segment) -> NDArray[np.bool_]:
        """Mark the first passages of documents that meet the condition, bool (n_rows,).

        A column that the segment lacks is NULL. Integers of a column that has floats in other
        segments are compared as integers.
        """
        marks = np.zeros(segment.n_rows, bool)
        answers = self.condition(document_columns(segment, self.columns, self.stored))
        marks[segment.firsts] = answers.fill_null(False).to_numpy(zero_copy_only=False)
        return marks


def parse(where: str, columns: Mapping[str, ColumnType]) -> Filter:
    """Turn a condition such as ``year >= 2019 AND lang IN ('en', 'de')`` into a filter.

    Args:
        where: The condition.
        columns: Metadata columns of the index. A condition can name ``doc_id`` and ``title`` as
            well. If a metadata column has one of these names, such as ``doc_id``, it is written
            ``meta.doc_id``, and the id of the document ``own.doc_id``.

    Raises:
        QueryError: The text is not a condition, or has an unknown column or an unsupported element;
            the message shows the condition with a mark below the position.
    """
    ambiguous = {name: columns[name] for name in OWN_COLUMNS if name in columns}
    prefixed = {_METADATA + name: kind for name, kind in ambiguous.items()} | {
        _OWN + name: OWN_COLUMNS[name] for name in ambiguous
    }
    known = {**columns, **OWN_COLUMNS, **prefixed}
    stored = stored_names(columns) | {
        prefix + name: part + name
        for name in ambiguous
        for prefix, part in ((_METADATA, columns_of.PREFIX), (_OWN, ""))
    }
    text = FilterText(where, known)
    try:
        tree = text.tree()
        compiler = _Compiler(text, known, ambiguous.keys(), prefixed.keys() & columns.keys())
        condition = compiler.condition(tree)
        text.require_supported(tree)
    except RecursionError:
        raise QueryError("The filter is nested too deeply; use fewer parentheses.") from None
    return Filter(condition, compiler.used, stored)


def stored_names(columns: Iterable[str]) -> dict[str, str]:
    """Map metadata columns and fields of every document to the names that segments store."""
    return {name: columns_of.PREFIX + name for name in columns} | {n: n for n in OWN_COLUMNS}


def document_columns(
    segment: Segment, columns: Mapping[str, ColumnType], stored: Mapping[str, str]
) -> dict[str, pa.Array]:
    """Read columns of a segment's documents in the types that the segment stores.

    Args:
        segment: The segment.
        columns: Names and types in the index; a column that the segment lacks is null.
        stored: Names of the columns in a segment.
    """
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
    """Compiles nodes of the parsed condition into functions, and records the columns they read."""

    def __init__(
        self,
        text: FilterText,
        columns: Mapping[str, ColumnType],
        ambiguous: Collection[str],
        colliding: Collection[str],
    ) -> None:
        self._refuse, self._columns = text.refuse, columns
        self._ambiguous, self._colliding = ambiguous, colliding
        self.used: dict[str, ColumnType] = {}

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
        """Join a whole chain of AND or OR at once, since thousands of nested calls would fail."""
        kind, parts = type(node), []
        rest: exp.Expr = node
        while type(rest) is kind:
            parts.append(self.condition(rest.expression))
            rest = rest.this
        parts.append(self.condition(rest))
        join = pc.and_kleene if kind is exp.And else pc.or_kleene
        return lambda columns: reduce(join, (part(columns) for part in parts))

    def _flag(self, node: exp.Column) -> Condition:
        name, kind = self._column(node)
        if kind != "bool":
            self._refuse(node, f"the column {node.name!r} is {kind}; compare it with a value")
        return lambda columns: columns[name]

    def _comparison(self, node: exp.Expr) -> Condition:
        operator = OPERATORS[type(node)]
        left, right = node.this, node.expression
        if isinstance(right, exp.Column) and not isinstance(left, exp.Column):
            left, right, operator = right, left, SWAPPED.get(operator, operator)
        name, kind = self._column(left)
        if not isinstance(right, exp.Column):
            value = self._literal(right, kind)
            return lambda columns: compare(columns[name], operator, value)
        other, other_kind = self._column(right)
        if kind != other_kind and not {kind, other_kind} <= _NUMBERS:
            self._refuse(right, f"a {kind} column cannot be compared with a {other_kind} column")
        return lambda columns: compare_columns(columns[name], operator, columns[other])

    def _predicate(self, node: exp.Expr) -> Condition:
        if isinstance(node, exp.Between):
            return self._between(node)
        if isinstance(node, exp.Like | exp.ILike):
            return self._like(node)
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, exp.In) and node.expressions:
            name, kind = self._column(node.this)
            values = [self._literal(item, kind) for item in node.expressions]
            return lambda columns: is_in(columns[name], values)
        self._refuse(node, KNOWN)

    def _between(self, node: exp.Between) -> Condition:
        name, kind = self._column(node.this)
        low, high = (self._literal(node.args[end], kind) for end in ("low", "high"))
        return lambda columns: pc.and_kleene(
            compare(columns[name], ">=", low),
            compare(columns[name], "<=", high),
        )

    def _like(self, node: exp.Like | exp.ILike) -> Condition:
        name, kind = self._column(node.this)
        if kind != "string":
            self._refuse(node, f"LIKE needs a text column; {name!r} is {kind}")
        pattern = self._literal(node.expression, kind)
        try:
            match = like(str(pattern), ignore_case=isinstance(node, exp.ILike))
        except ValueError as error:
            self._refuse(node.expression, str(error))
        return lambda columns: match(columns[name])

    def _is(self, node: exp.Is) -> Condition:
        name, kind = self._column(node.this)
        if isinstance(node.expression, exp.Null):
            return lambda columns: columns[name].is_null()
        if isinstance(node.expression, exp.Boolean) and kind == "bool":
            flag = bool(node.expression.this)
            return lambda columns: compare(columns[name], "=", flag).fill_null(False)
        self._refuse(node, "write IS NULL or IS NOT NULL")

    def _column(self, node: exp.Expr) -> tuple[str, ColumnType]:
        if not isinstance(node, exp.Column):
            self._refuse(node, "a comparison needs the name of a column here")
        name = ".".join(part.name for part in node.parts)
        if name not in self._columns:
            shown = shortened(name)
            hint = unknown_name(shown, shown, self._columns, "column").rstrip(".")
            if node.this.args.get("quoted"):
                hint += f"; a text is written in single quotes, '{shown}'"
            self._refuse(node, hint)
        if name in self._ambiguous:
            self._refuse(
                node,
                f"{name!r} is both a metadata column and a field of every document; "
                f"write {_METADATA}{name} or {_OWN}{name}",
            )
        if name in self._colliding:
            self._refuse(
                node,
                f"{name!r} is a metadata column, and also the way to write the column "
                f"{name.partition('.')[2]!r}; rename one of them in the data",
            )
        self.used[name] = self._columns[name]
        return name, self._columns[name]

    def _literal(self, node: exp.Expr, kind: ColumnType) -> Value:
        if isinstance(node, exp.Null):
            self._refuse(node, "no value equals NULL; write IS NULL or IS NOT NULL")
        if kind in _NUMBERS:
            return self._number(node, kind)
        if kind == "bool" and isinstance(node, exp.Boolean):
            return bool(node.this)
        if kind == "bool" or not (isinstance(node, exp.Literal) and node.is_string):
            shown = "TRUE or FALSE" if kind == "bool" else "text in single quotes"
            self._refuse(node, f"the column is {kind}; compare it with {shown}")
        return self._parsed(node, kind)

    def _number(self, node: exp.Expr, kind: ColumnType) -> int | float:
        """Read a literal as int if it is an integer within int64, else as the nearest float64."""
        negative = isinstance(node, exp.Neg)
        digits = node.this if negative else node
        if not isinstance(digits, exp.Literal) or digits.is_string:
            self._refuse(node, f"the column is {kind}; compare it with a number")
        written = _NUMBER.fullmatch(digits.name)
        if not written:
            self._refuse(node, f"{shortened(digits.name)!r} is not a number")
        text = "-" * negative + digits.name
        # An int64 has at most 19 digits; Python refuses to parse integers of thousands of digits.
        if written["int"] and len(digits.name.lstrip("0")) < 20:
            whole = int(text)
            if INT64.min <= whole <= INT64.max:
                return whole
        return float(text)

    def _parsed(self, node: exp.Expr, kind: ColumnType) -> str | date | datetime:
        text = str(node.this)
        try:
            if kind == "date":
                return date.fromisoformat(text)
            if kind == "timestamp":
                return _time(text)
        except (ValueError, OverflowError):
            self._refuse(node, f"{shortened(text)!r} is not a {kind}; write it as 2024-12-31"
                               + ("T23:59:59" if kind == "timestamp" else ""))  # fmt: skip
        return text


def _inverted(condition: Condition) -> Condition:
    return lambda columns: pc.invert(condition(columns))


def _time(text: str) -> datetime:
    """Read a time, in UTC if it names no zone; refuse more than six decimals of a second."""
    if re.search(r"[.,][0-9]{7}", text):
        raise ValueError("beyond microseconds")
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
