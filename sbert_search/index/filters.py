"""``--where``: an SQL condition over metadata becomes a `pyarrow.compute` expression.

`sqlglot` parses; only what is listed here passes: columns, literals, comparison, AND, OR, NOT, IN,
BETWEEN, LIKE, ILIKE and IS [NOT] NULL. A missing value is NULL, with SQL's three-valued logic.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from numpy.typing import NDArray
from sqlglot import exp

from sbert_search.config import unknown_name
from sbert_search.errors import QueryError
from sbert_search.index import columns as columns_of
from sbert_search.index.columns import ARROW_TYPES
from sbert_search.index.manifest import ColumnType

if TYPE_CHECKING:
    from sbert_search.index.segments import Segment

MAX_CHARACTERS = 100_000
OWN_COLUMNS: Mapping[str, ColumnType] = {"doc_id": "string", "title": "string"}

Operator = Callable[[Any, Any], pc.Expression]

_COMPARISONS: Mapping[type[exp.Expr], tuple[Operator, Operator]] = {  # and with the sides swapped
    exp.EQ: (operator.eq, operator.eq),
    exp.NEQ: (operator.ne, operator.ne),
    exp.LT: (operator.lt, operator.gt),
    exp.LTE: (operator.le, operator.ge),
    exp.GT: (operator.gt, operator.lt),
    exp.GTE: (operator.ge, operator.le),
}
_NUMBERS = {"int64", "float64"}


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on documents.

    Attributes:
        expression: Over columns named as the user names them.
        columns: The columns it reads, with their types.
    """

    expression: pc.Expression
    columns: Mapping[str, ColumnType]

    def matching(self, segment: Segment) -> NDArray[np.bool_]:
        """Mark the first passages of documents that fulfil the condition, bool (n_rows,).

        A column that the segment lacks is NULL in it.
        """
        stored = {name: _stored_name(name) for name in self.columns}
        there = columns_of.schema(segment.record.columns).names
        table = segment.table([name for name in stored.values() if name in there])
        first = np.flatnonzero(segment.chunks == 0)
        arrays = {"position": pa.array(first)}
        for name, kind in self.columns.items():
            if stored[name] in there:
                column = table.column(stored[name])
                column = column if len(first) == len(column) else column.take(pa.array(first))
                arrays[name] = column.cast(ARROW_TYPES[kind])
            else:
                arrays[name] = pa.nulls(len(first), ARROW_TYPES[kind])
        marks = np.zeros(segment.n_rows, bool)
        marks[pa.table(arrays).filter(self.expression).column("position").to_numpy()] = True
        return marks


def parse(where: str, columns: Mapping[str, ColumnType]) -> Filter:
    """Turn a condition such as ``year >= 2019 AND lang IN ('en', 'de')`` into a filter.

    Args:
        where: The condition.
        columns: Metadata columns of the index; ``doc_id`` and ``title`` can be named besides.

    Raises:
        QueryError: It is no condition, or names or does what filters cannot; the message shows the
            expression with a mark below the place.
    """
    return _Compiler(where, {**columns, **OWN_COLUMNS}).compile()


class _Compiler:
    def __init__(self, where: str, columns: Mapping[str, ColumnType]) -> None:
        self._where, self._columns = where, columns
        self._used: dict[str, ColumnType] = {}

    def compile(self) -> Filter:
        if len(self._where) > MAX_CHARACTERS:
            raise QueryError(f"The filter has more than {MAX_CHARACTERS:,} characters.")
        if not self._where.strip():
            raise QueryError("The filter is empty; write a condition such as year >= 2019.")
        try:
            return Filter(self._condition(self._tree()), self._used)
        except RecursionError:
            raise QueryError("The filter is nested too deeply; write it flatter.") from None

    def _tree(self) -> exp.Expr:
        try:
            return sqlglot.parse_one(self._where, into=exp.Condition)
        except sqlglot.errors.ParseError as error:
            at = error.errors[0] if error.errors else {}
            before = at.get("start_context") or ""
            place = self._where.find(before + (at.get("highlight") or "")) + len(before)
            self._refuse(max(place, 0), "it is no condition here")
        except sqlglot.errors.TokenError:
            quotes = max(self._where.rfind(quote) for quote in "'\"")
            self._refuse(max(quotes, 0), "a quote is not closed")

    def _quotes_missing(self) -> str:
        """Name the columns that SQL reads as something else where they stand without quotes."""
        bare = re.sub(r"""'[^']*'|"[^"]*\"""", "", self._where)
        there = (n for n in self._columns if re.search(rf"(?<!\w){re.escape(n)}(?!\w)", bare))
        odd = [f'"{name}"' for name in there if not _is_name(name)]
        return f"; write {' and '.join(odd)} in double quotes" if odd else ""

    def _condition(self, node: exp.Expr) -> pc.Expression:
        if isinstance(node, exp.Paren):
            return self._condition(node.this)
        if isinstance(node, exp.And | exp.Or):
            join = operator.and_ if isinstance(node, exp.And) else operator.or_
            return join(self._condition(node.this), self._condition(node.expression))
        if isinstance(node, exp.Not):
            return ~self._condition(node.this)
        if type(node) in _COMPARISONS:
            return self._comparison(node)
        if isinstance(node, exp.Column):
            return self._flag(node)
        return self._predicate(node)

    def _comparison(self, node: exp.Expr) -> pc.Expression:
        straight, swapped = _COMPARISONS[type(node)]
        left, right = node.this, node.expression
        if isinstance(right, exp.Column) and not isinstance(left, exp.Column):
            left, right, straight = right, left, swapped
        field, kind = self._column(left)
        if not isinstance(right, exp.Column):
            return straight(field, self._literal(right, kind))
        other, other_kind = self._column(right)
        if kind != other_kind and not {kind, other_kind} <= _NUMBERS:
            self._refuse_node(right, f"a {kind} and a {other_kind} column do not compare")
        return straight(field, other)

    def _flag(self, node: exp.Column) -> pc.Expression:
        field, kind = self._column(node)
        if kind != "bool":
            self._refuse_node(node, f"the column {node.name!r} is {kind}; compare it with a value")
        return field

    def _predicate(self, node: exp.Expr) -> pc.Expression:
        if isinstance(node, exp.Between) and not node.args.get("symmetric"):
            field, kind = self._column(node.this)
            low = self._literal(node.args["low"], kind)
            return (field >= low) & (field <= self._literal(node.args["high"], kind))
        if isinstance(node, exp.Like | exp.ILike):
            return self._like(node)
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, exp.In) and node.expressions:
            return self._in(node)
        self._refuse_node(node, "filters know columns, values, =, <>, <, >, AND, OR, NOT, IN, "
                                "BETWEEN, LIKE and IS NULL")  # fmt: skip

    def _in(self, node: exp.In) -> pc.Expression:
        field, kind = self._column(node.this)
        values = [self._literal(item, kind) for item in node.expressions]
        found = field.isin(pa.array([value.as_py() for value in values], _common_type(values)))
        return pc.if_else(field.is_valid(), found, pa.scalar(None, pa.bool_()))

    def _like(self, node: exp.Like | exp.ILike) -> pc.Expression:
        field, kind = self._column(node.this)
        if kind != "string":
            self._refuse_node(node, f"LIKE needs a text column; {node.this.name!r} is {kind}")
        pattern = self._literal(node.expression, kind).as_py()
        return pc.match_like(field, pattern, ignore_case=isinstance(node, exp.ILike))

    def _is(self, node: exp.Is) -> pc.Expression:
        field, kind = self._column(node.this)
        if isinstance(node.expression, exp.Null):
            return field.is_null()
        if isinstance(node.expression, exp.Boolean) and kind == "bool":
            return field.is_valid() & (field == bool(node.expression.this))
        self._refuse_node(node, "write IS NULL or IS NOT NULL")

    def _column(self, node: exp.Expr) -> tuple[pc.Expression, ColumnType]:
        if not isinstance(node, exp.Column):
            self._refuse_node(node, "a comparison needs the name of a column here")
        name = ".".join(part.name for part in node.parts)
        if name not in self._columns:
            self._refuse_node(node, unknown_name(name, name, self._columns, "column").rstrip("."))
        self._used[name] = self._columns[name]
        return pc.field(name), self._columns[name]

    def _literal(self, node: exp.Expr, kind: ColumnType) -> pa.Scalar:
        if isinstance(node, exp.Null):
            self._refuse_node(node, "NULL equals nothing; write IS NULL or IS NOT NULL")
        if kind in _NUMBERS:
            return self._number(node, kind)
        if kind == "bool" and isinstance(node, exp.Boolean):
            return pa.scalar(bool(node.this))
        if kind == "bool" or not (isinstance(node, exp.Literal) and node.is_string):
            shown = "TRUE or FALSE" if kind == "bool" else "text in single quotes"
            self._refuse_node(node, f"the column is {kind}; compare it with {shown}")
        return pa.scalar(self._parsed(node, kind), ARROW_TYPES[kind])

    def _number(self, node: exp.Expr, kind: ColumnType) -> pa.Scalar:
        negative = isinstance(node, exp.Neg)
        digits = node.this if negative else node
        if not isinstance(digits, exp.Literal) or digits.is_string:
            self._refuse_node(node, f"the column is {kind}; compare it with a number")
        value = float(digits.name) if not digits.name.isdecimal() else int(digits.name)
        value = -value if negative else value
        fits = isinstance(value, int) and -(2**63) <= value < 2**63
        return pa.scalar(value if fits else float(value))

    def _parsed(self, node: exp.Expr, kind: ColumnType) -> str | date | datetime:
        text = str(node.this)
        try:
            if kind == "date":
                return date.fromisoformat(text)
            if kind == "timestamp":
                moment = datetime.fromisoformat(text)
                return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        except ValueError:
            self._refuse_node(node, f"{text!r} is no {kind}; write it as 2024-12-31"
                                    + ("T23:59:59" if kind == "timestamp" else ""))  # fmt: skip
        return text

    def _refuse_node(self, node: exp.Expr, reason: str) -> NoReturn:
        tree: exp.Expr | None = node
        while tree is not None:
            starts = [part.meta["start"] for part in tree.walk() if "start" in part.meta]
            if starts:
                self._refuse(min(starts), reason)
            tree = tree.parent
        self._refuse(0, reason)

    def _refuse(self, offset: int, reason: str) -> NoReturn:
        before = self._where[:offset]
        line = self._where.split("\n")[before.count("\n")]
        mark = " " * (offset - before.rfind("\n") - 1) + "^"
        reason += self._quotes_missing()
        stop = "" if reason.endswith(("?", ".")) else "."
        raise QueryError(f"The filter cannot be used: {reason}{stop}\n  {line}\n  {mark}")


def _is_name(name: str) -> bool:
    """Whether SQL reads a word as the name of a column."""
    try:
        return isinstance(sqlglot.parse_one(name, into=exp.Condition), exp.Column)
    except sqlglot.errors.SqlglotError:
        return False


def _common_type(values: list[pa.Scalar]) -> pa.DataType:
    kinds = {value.type for value in values}
    return kinds.pop() if len(kinds) == 1 else pa.float64()


def _stored_name(name: str) -> str:
    return name if name in OWN_COLUMNS else columns_of.PREFIX + name
