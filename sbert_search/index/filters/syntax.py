"""The text of a filter: parse it with `sqlglot`, check each node, show where an error is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

import sqlglot
from sqlglot import exp

from sbert_search.errors import QueryError

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
    """The text of a condition.

    Args:
        where: The condition.
        columns: Names of the available columns.

    Raises:
        QueryError: The condition is no string, is empty or too long, or has a lone surrogate.
    """

    def __init__(self, where: str, columns: Iterable[str]) -> None:
        if not isinstance(where, str):
            raise QueryError(f"The filter is {where!r}; it must be text such as 'year >= 2019'.")
        self._where, self._columns = where, columns
        if len(where) > MAX_CHARACTERS:
            raise QueryError(f"The filter has more than {MAX_CHARACTERS:,} characters.")
        if not where.strip():
            raise QueryError("The filter is empty; write a condition such as year >= 2019.")
        try:
            where.encode()
        except UnicodeEncodeError as error:
            self._refuse_at(error.start, "it is not valid UTF-8 here")

    def tree(self) -> exp.Expr:
        """Parse the condition.

        Raises:
            QueryError: The text is not a condition.
            RecursionError: The condition is nested too deeply.
        """
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
            quotes = max(self._where.rfind(quote) for quote in "'\"")
            self._refuse_at(max(quotes, 0), "a quote is not closed")

    def require_supported(self, tree: exp.Expr) -> None:
        """Refuse a tree with anything that `conditions` does not compile.

        Raises:
            QueryError: A node, an argument of a node or a comment is not supported.
        """
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
        start = self._where.rfind("\n", 0, offset) + 1
        line = self._where[start:].partition("\n")[0]
        skipped = max(0, offset - start - SHOWN_CHARACTERS // 2)
        shown = _printable(line[skipped : skipped + SHOWN_CHARACTERS])
        shown = "..." * bool(skipped) + shown
        shown += "..." * (len(line) > skipped + SHOWN_CHARACTERS)
        before = "..." * bool(skipped) + _printable(line[skipped : offset - start])
        reason += self._quotes_missing()
        stop = "" if reason.endswith(("?", ".")) else "."
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


def shortened(text: str) -> str:
    """Cut a text for a message, if it is longer than half of `SHOWN_CHARACTERS`."""
    return text if len(text) <= SHOWN_CHARACTERS // 2 else text[: SHOWN_CHARACTERS // 2] + "..."


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
