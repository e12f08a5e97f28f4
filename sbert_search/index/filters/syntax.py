"""The text of a filter: parse it, check each node, and read its columns and values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Literal, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from sbert_search.base.cache import typed_lru_cache
from sbert_search.base.progress import warn
from sbert_search.config import unknown_name
from sbert_search.errors import QueryError
from sbert_search.index.filters.comparisons import INT64, Value
from sbert_search.index.filters.structured import condition_text
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.records import Where
from sbert_search.text.columns import some_texts, warn_of_texts

MAX_CHARACTERS = 100_000
_OPERATOR = re.compile(r"(?i)AND|OR|NOT|IN|I?LIKE|BETWEEN|IS|[<>=!]+")  # needs an operand after it
SHOWN_CHARACTERS = 160  # characters of the filter that an error shows
KNOWN = (
    "filters support columns, values, =, <>, <, >, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL, "
    "lower() and upper()"
)

OPERATORS: Mapping[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_SIDES = {"this", "expression"}
_READ: Mapping[type[exp.Expr], set[str]] = {
    **{comparison: _SIDES for comparison in OPERATORS},
    exp.And: _SIDES,
    exp.Or: _SIDES,
    exp.Not: {"this"},
    exp.Paren: {"this"},
    exp.Like: {*_SIDES, "negate"},
    exp.ILike: {*_SIDES, "negate"},
    exp.Is: {*_SIDES, "negate"},
    exp.In: {"this", "expressions", "field", "negate"},
    exp.Lower: {"this"},
    exp.Upper: {"this"},
    exp.Between: {"this", "low", "high", "negate"},
    exp.Column: {"this", "table", "db", "catalog"},
    exp.Identifier: {"this", "quoted"},
    exp.Literal: {"this", "is_string"},
    exp.Neg: {"this"},
    exp.Null: set(),
    exp.Boolean: {"this"},
}
"""For each kind of node, the arguments that `conditions` compiles. All other arguments are refused,
because a new version of sqlglot may introduce an argument that changes the meaning of a node, as
sqlglot 30 did with `negate`."""


class FilterText:
    """The text of a condition; empty, too long or not UTF-8 is a QueryError."""

    def __init__(self, given: Where, columns: Iterable[str]) -> None:
        where = condition_text(given)
        if not isinstance(where, str):
            raise QueryError(
                f"The filter is {where!r:.100}; it must be text such as 'year >= 2019', "
                "('brand = ?', [brand]) or {'brand': brand}."
            )
        self._where, self._columns, self._given = where, columns, given
        if len(where) > MAX_CHARACTERS:
            raise QueryError(f"The filter has more than {MAX_CHARACTERS:,} characters.")
        if not where.strip():
            raise QueryError("The filter is empty; write a condition such as year >= 2019.")
        try:
            where.encode()
        except UnicodeEncodeError as error:
            self._refuse_at(error.start, "it is not valid UTF-8 here")

    def tree(self) -> exp.Expr:
        """Parse the condition; RecursionError if it is nested too deeply."""
        try:
            return sqlglot.parse_one(self._where, into=exp.Condition)
        except sqlglot.errors.ParseError as error:
            at = error.errors[0] if error.errors else {}
            before = at.get("start_context") or ""
            offset = self._where.find(before + (at.get("highlight") or "")) + len(before)
            rest = self._where[max(offset, 0) :].strip()
            reason = "it is not a condition here"
            if _OPERATOR.fullmatch(rest):
                missing = f"a value or a condition is missing after {shortened(rest)}"
                reason = f"it is incomplete: {missing}"
            self._refuse_at(max(offset, 0), reason)
        except sqlglot.errors.TokenError:
            begins = max(self._where.rfind(quote) for quote in "'\"")
            reason = "a quote is not closed"
            if begins < 0 and (begins := self._where.find("/*")) >= 0:
                reason = "a comment begins here; write a text in single quotes, as in path = 'a/b'"
            self._refuse_at(max(begins, 0), reason)

    def require_supported(self, tree: exp.Expr) -> None:
        """Refuse a node, an argument of a node or a comment that `conditions` does not compile."""
        for node in tree.walk():
            if node.comments:
                self.refuse(node, "filters cannot have comments")
            used = {name for name, value in node.args.items() if value}
            if type(node) not in _READ or not used <= _READ[type(node)]:
                self.refuse(node, KNOWN)

    def refuse(self, node: exp.Expr, reason: str) -> NoReturn:
        """Raise `QueryError` with a mark below the position of a node."""
        tree: exp.Expr | None = node
        while tree is not None:
            starts = [part.meta["start"] for part in tree.walk() if "start" in part.meta]
            if starts:
                self._refuse_at(min(starts), reason)
            tree = tree.parent
        self._refuse_at(0, reason)

    def _refuse_at(self, offset: int, reason: str) -> NoReturn:
        reason += self._quotes_missing()
        stop = "" if reason.endswith(("?", ".")) else "."
        if self._given != self._where:  # the user did not write this text
            shown = shortened(_printable(repr(self._given)), SHOWN_CHARACTERS)
            raise QueryError(f"The filter cannot be used: {reason}{stop}\n  {shown}")
        start = self._where.rfind("\n", 0, offset) + 1
        line = self._where[start:].partition("\n")[0]
        skipped = max(0, offset - start - SHOWN_CHARACTERS // 2)
        shown = _printable(line[skipped : skipped + SHOWN_CHARACTERS])
        shown = "..." * bool(skipped) + shown
        shown += "..." * (len(line) > skipped + SHOWN_CHARACTERS)
        before = "..." * bool(skipped) + _printable(line[skipped : offset - start])
        mark = " " * len(before) + "^"
        raise QueryError(f"The filter cannot be used: {reason}{stop}\n  {shown}\n  {mark}")

    def _quotes_missing(self) -> str:
        """Return a hint to put the unquoted column names that need it in double quotes, or ""."""
        bare = re.sub(r"""'[^']*'|"[^"]*\"""", "", self._where)
        named = filter(None, self._columns)
        used = (n for n in named if re.search(rf"(?<!\w){re.escape(n)}(?!\w)", bare))
        unquoted = [f'"{name}"' for name in used if not _is_name(name)]
        return f"; write {' and '.join(unquoted)} in double quotes" if unquoted else ""


def _is_name(name: str) -> bool:
    """Whether SQL reads a text without quotes as the name of a column."""
    try:
        return isinstance(sqlglot.parse_one(name, into=exp.Condition), exp.Column)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return False


def shortened(text: str, most: int = SHOWN_CHARACTERS // 2) -> str:
    """Cut a text for a message."""
    return text if len(text) <= most else text[:most] + "..."


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


# Prefixes that tell a metadata column from the document's own field of the same name.
METADATA, OWN = "meta.", "own."

_CASES = {"lower": pc.utf8_lower, "upper": pc.utf8_upper}
_EXAMPLES = {"string": "'x'", "bool": "TRUE", "date": "'2024-12-31'", "timestamp": "'2024-12-31'"}


@dataclass(frozen=True, slots=True)
class Operand:
    """A column of a condition, in lower or upper case if the condition says so."""

    name: str  # in the condition
    kind: ColumnType
    case: Literal["", "lower", "upper"] = ""

    @property
    def item(self) -> ColumnType | None:
        """Type of the values of a list column; None for any other column."""
        return _ITEMS.get(self.kind)

    def values(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """Return the values of a column that is no list, with the case changed if asked for."""
        return self.cased(columns[self.name])

    def cased(self, texts: pa.Array) -> pa.Array:
        """Apply `case` to texts, by Unicode's simple case mapping of single characters."""
        return _CASES[self.case](texts) if self.case else texts


class Columns:
    """The columns that a condition can name; ``used`` collects those that were read.

    ``ambiguous`` are metadata columns that are also fields of every document. ``colliding`` are
    those whose names equal the prefixed name of another column: beside a metadata column "title", a
    metadata column "meta.title" or "own.title" collides.
    """

    def __init__(
        self,
        text: FilterText,
        types: Mapping[str, ColumnType],
        ambiguous: Collection[str],
        colliding: Collection[str],
    ) -> None:
        self._refuse, self._types = text.refuse, types
        self._ambiguous, self._colliding = ambiguous, colliding
        self.used: dict[str, ColumnType] = {}

    def read(self, node: exp.Expr) -> Operand:
        """Return the column that a node names; lower() or upper() may enclose it if it is text."""
        if isinstance(node, exp.Lower | exp.Upper):
            operand = self.read(node.this)
            if operand.case or "string" not in (operand.kind, operand.item):
                self._refuse(node.this, f"{node.key}() needs a text column")
            return Operand(
                operand.name,
                operand.kind,
                "lower" if isinstance(node, exp.Lower) else "upper",
            )
        if not isinstance(node, exp.Column):
            self._refuse(node, "a comparison needs the name of a column here")
        name = ".".join(part.name for part in node.parts)
        self._require_known(name, node)
        self.used[name] = self._types[name]
        return Operand(name, self._types[name])

    def read_scalar(self, node: exp.Expr) -> Operand:
        """Return the column that a node names, and refuse a list with a hint how to write it."""
        operand = self.read(node)
        if operand.item:
            value, column = _EXAMPLES.get(operand.item, "5"), shortened(node.sql())
            self._refuse(
                node,
                f"the column {operand.name!r} is a list; write {value} IN {column} for the lists "
                "that contain a value; in a mapping, use $contains or $contains_any",
            )
        return operand

    def _require_known(self, name: str, node: exp.Column) -> None:
        if name not in self._types:
            shown = shortened(name)
            hint = unknown_name(shown, shown, self._types, "column").rstrip(".")
            if node.this.args.get("quoted") or node.arg_key in _VALUES:
                hint += f"; a text is written in single quotes, '{shown}'"
            self._refuse(node, hint)
        if name in self._ambiguous:
            self._refuse(
                node,
                f"{name!r} is both a metadata column and a field of every document; "
                f"write {METADATA}{name} or {OWN}{name}",
            )
        if name in self._colliding:
            self._refuse(
                node,
                f"{name!r} is a metadata column, and also the way to write the column "
                f"{name.partition('.')[2]!r}; rename one of them in the data",
            )


# Arguments of a node that mostly hold a value. An unknown name there may be a text without single
# quotes.
_VALUES = ("expression", "expressions", "low", "high")
_ITEMS: Mapping[str, ColumnType] = {
    "list[string]": "string",
    "list[int64]": "int64",
    "list[float64]": "float64",
    "list[bool]": "bool",
    "list[timestamp]": "timestamp",
    "list[date]": "date",
}


NUMBERS = {"int64", "float64"}

_NUMBER = re.compile(r"(?P<int>[0-9]+)|([0-9]+\.?|[0-9]*\.[0-9]+)(e[-+]?[0-9]+)?", re.IGNORECASE)
_WRITTEN_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}")
_TIME_FORMS = {"date": "YYYY-MM-DD", "timestamp": "YYYY-MM-DDThh:mm:ss"}


def read_literal(node: exp.Expr, kind: ColumnType, text: FilterText) -> Value:
    """Read a value to compare with a column, or with the items of a list, of type ``kind``."""
    if isinstance(node, exp.Null):
        text.refuse(node, "no value equals NULL; write IS NULL or IS NOT NULL")
    if kind in NUMBERS:
        return _number(node, kind, text)
    if kind == "bool" and isinstance(node, exp.Boolean):
        return bool(node.this)
    if kind == "bool" or not (isinstance(node, exp.Literal) and node.is_string):
        shown = "TRUE or FALSE" if kind == "bool" else "text in single quotes"
        hint = ""
        if kind == "string" and isinstance(node, exp.Literal):
            hint = (
                " (if its texts are numbers: an index built with --column-type reads them as such)"
            )
        text.refuse(node, f"the column is {kind}; compare it with {shown}{hint}")
    written = str(node.this)
    try:
        if kind == "date":
            return date.fromisoformat(written)
        if kind == "timestamp":
            return _time(written)
    except (ValueError, OverflowError):
        form = _TIME_FORMS[kind]
        text.refuse(node, f"{shortened(written)!r} is not a {kind}; write it as {form}")
    if _WRITTEN_TIME.match(written) and node.parent and (column := node.parent.find(exp.Column)):
        _warn_of_times(column.name)
    return written


@typed_lru_cache(256)  # a server warns of a column once
def _warn_of_times(column: str) -> None:
    warn(
        f"The text column {shortened(column)!r} is compared with a time as text, so that the same "
        f"time written in another way, such as with another offset from UTC, is another value. "
        f"To compare times, build the index with --column-type {shortened(column)}=timestamp."
    )


# A date or a number, perhaps with the sign of a currency or another unit.
_COMPARED_BY_VALUE = re.compile(r"\W{0,2}(?:[A-Z]{3}\s)?[0-9]+(?:[.,/-][0-9]+)*[^\W\d]{0,4}\b")


def warn_of_texts_by_value(column: str, values: pa.Array, literal: str) -> None:
    """Warn if a text column with values such as 15.09.2025 is compared with a date or a number."""
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if is_text and _COMPARED_BY_VALUE.match(literal):
        warn_of_texts(shortened(column), some_texts(values), "compared")


def _number(node: exp.Expr, kind: ColumnType, text: FilterText) -> int | float:
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

    ValueError if it is no time or has more than six decimals of a second; OverflowError if it is
    before year 1 or after year 9999 in UTC.
    """
    if re.search(r"[.,][0-9]{7}", text):
        raise ValueError("beyond microseconds")
    # Python would read some numbers of 13 digits, such as milliseconds since 1970, as a time.
    if text.isdecimal() and len(text) > 8:
        raise ValueError("digits only")
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
