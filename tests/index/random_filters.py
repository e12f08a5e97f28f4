"""Random filters in this package's SQL and in sqlite's, over every kind of node that is admitted.

Connectives, parentheses and precedence are the same text for both. What sqlite writes otherwise
is translated in one place each: times are ISO text in UTC, lists are JSON text, LIKE names its
escape character, and ILIKE and IN of a list are functions that the test registers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from sbert_search.index.storage.manifest import ColumnType
from tests.index.random_literals import DATES, PATTERN_PARTS, TEXTS, number, quote, time

COLUMNS: dict[str, ColumnType] = {
    "i": "int64",
    "j": "int64",
    "f": "float64",
    "mixed": "float64",  # integers in some segments, beyond 2**53 too
    "late": "float64",  # absent from the first segment
    "s": "string",
    "my col": "string",
    "b": "bool",
    "flag": "bool",
    "d": "date",
    "a.b": "date",
    "t": "timestamp",
    "title": "string",  # also a field of every document
    "meta.note": "string",
    "own.rank": "int64",
    "words": "list[string]",
    "numbers": "list[int64]",
    "my floats": "list[float64]",
    "flags": "list[bool]",
    "days": "list[date]",
    "meta.times": "list[timestamp]",
}
# By the names in a filter. The metadata column and the document's field `title` need a prefix.
ALL_COLUMNS: dict[str, ColumnType] = {
    **{name: kind for name, kind in COLUMNS.items() if name != "title"},
    "meta.title": "string",
    "own.title": "string",
    "doc_id": "string",
}

REFUSED = [
    "lower(i) = 'a'", "lower(upper(s)) = 'a'", "trim(s) = 'a'", "lower(s)", "s = lower('A')",
    "title = 'a'", "words = 'a'", "words IN ('a')", "'a' IN s", "s IN words", "words = words",
    "'a' IN (words)", "1 IN words", "'a' IN numbers", "NULL IN words", "numbers > 1",
    "words LIKE 'a'", "lower(numbers) IS NULL", "'a' IN lower(days)", "flags",
    "words BETWEEN 'a' AND 'b'", "i + 1 > 2", "i > j + 1", "i IN (SELECT 1)",
    "s LIKE 'a!%' ESCAPE '!'",
    "s LIKE 'a\\'", "s NOT LIKE ANY ('a', 'b')", "i BETWEEN SYMMETRIC 2 AND 1", "s > 5",
    "i IS DISTINCT FROM 1", "i IS NOT DISTINCT FROM 1", "i <=> 1", "s COLLATE nocase = 'a'",
    "i::text = '1'", "CAST(i AS text) = '1'", "i > '1'", "b = 1", "d > 'soon'", "d > t", "s = i",
    "i = NULL", "i IN (1, NULL)", "i > 1 /* more */", "unknown = 1", "I = 1", "1 = 1", "i", "TRUE",
    "s || s = 'a'", "EXISTS (SELECT 1)", "s GLOB 'a*'", "s SIMILAR TO 'a'", "s RLIKE 'a'", "i > 1e",
    "t > '2024-01-01T00:00:00.1234567'", "t > '0001-01-01T00:00:00+23:59'", "d > '2024-02-30'",
    "CASE WHEN b THEN b ELSE b END", "i = ANY (1, 2)", "i IN (j)", "i BETWEEN j AND 5", "i > 0x1F",
    "s = 'a' 'b'", "? = 1", ":i = 1", "i IN 5", "(i, j) = (1, 2)", "i = 1 = 1", "-i < 5",
]  # fmt: skip


@dataclass(frozen=True)
class RandomFilter:
    """A condition, twice.

    Attributes:
        ours: As `filters.parse` takes it.
        sqlite: The same for sqlite; None: the filter must be refused.
        nodes: Names of the kinds of nodes in it.
    """

    ours: str
    sqlite: str | None
    nodes: frozenset[str]


class FilterGenerator:
    """Draws filters from a generator of random numbers."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._nodes: set[str] = set()
        self._refused = False

    def draw(self) -> RandomFilter:
        """Draw a filter; about one of fifty must be refused."""
        self._nodes, self._refused = set(), False
        ours, sqlite = self._condition(self._rng.choice([0, 1, 1, 1, 2, 2]))
        return RandomFilter(ours, None if self._refused else sqlite, frozenset(self._nodes))

    def _condition(self, depth: int) -> tuple[str, str]:
        rng = self._rng
        kind = rng.random()
        if depth == 0 or kind < 0.15:
            return self._leaf()
        if kind < 0.3:
            self._nodes.add("NOT")
            word, part = self._word("NOT"), self._condition(depth - 1)
            form = rng.choice(["{} ({})", "{} {}", "{}({})"])
            return form.format(word, part[0]), form.format(word, part[1])
        if kind < 0.4:
            self._nodes.add("( )")
            part = self._condition(depth - 1)
            return f"({part[0]})", f"( {part[1]} )"
        name = rng.choice(["AND", "OR"])
        self._nodes.add(name)
        word, parts = (
            self._word(name),
            [self._condition(depth - 1) for _ in range(rng.choice([2, 2, 2, 2, 3]))],
        )
        space = rng.choice([" ", "  ", "\n", " \t"])
        ours, sqlite = zip(*parts, strict=True)
        return f"{space}{word}{space}".join(ours), f" {name} ".join(sqlite)

    def _leaf(self) -> tuple[str, str]:
        if self._rng.random() < 0.008:
            self._refused = True
            text = self._rng.choice(REFUSED)
            return text, text
        name = self._rng.choice(list(ALL_COLUMNS))
        kind = ALL_COLUMNS[name]
        if kind.startswith("list["):
            return self._rng.choice([self._contains, self._contains, self._null])(name, kind)
        choices: list[Callable[[str, ColumnType], tuple[str, str]]]
        choices = [self._compared, self._compared, self._in, self._between, self._null]
        choices += [self._like] * 4 if kind == "string" else [self._compared]
        choices += [self._flag] * 2 if kind == "bool" else [self._columns]
        return self._rng.choice(choices)(name, kind)

    def _compared(self, name: str, kind: ColumnType) -> tuple[str, str]:
        operator = self._rng.choice(["=", "==", "<>", "!=", "<", "<=", ">", ">="])
        self._nodes.add(f"{operator} {kind}")
        ours, sqlite = self._literal(kind)
        column, quoted = self._column(name)
        if self._rng.random() < 0.2:
            self._nodes.add("literal first")
            return f"{ours} {operator} {column}", f"{sqlite} {operator} {quoted}"
        space = self._rng.choice(["", " "])
        return f"{column}{space}{operator}{space}{ours}", f"{quoted} {operator} {sqlite}"

    def _columns(self, name: str, kind: ColumnType) -> tuple[str, str]:
        numbers = {"int64", "float64"}
        same = [n for n, k in ALL_COLUMNS.items() if k == kind or {k, kind} <= numbers]
        other = self._rng.choice(same)
        operator = self._rng.choice(["=", "<>", "<", "<=", ">", ">="])
        self._nodes.add(f"{kind} {operator} {ALL_COLUMNS[other]}")
        left, right = self._column(name), self._column(other)
        return f"{left[0]} {operator} {right[0]}", f"{left[1]} {operator} {right[1]}"

    def _in(self, name: str, kind: ColumnType) -> tuple[str, str]:
        column, quoted = self._column(name)
        word = self._negatable("IN", kind)
        items = [self._literal(kind) for _ in range(self._rng.choice([1, 2, 3, 6]))]
        ours, sqlite = zip(*items, strict=True)
        return f"{column} {word} ({', '.join(ours)})", f"{quoted} {word} ({','.join(sqlite)})"

    def _contains(self, name: str, kind: ColumnType) -> tuple[str, str]:
        column, quoted = self._column(name)
        word = self._negatable("IN", kind)
        ours, sqlite = self._literal(cast(ColumnType, kind[5:-1]))
        truth = f"contains({sqlite}, {quoted})"
        return f"{ours} {word} {column}", f"NOT {truth}" * word.upper().startswith("NOT") or truth

    def _between(self, name: str, kind: ColumnType) -> tuple[str, str]:
        column, quoted = self._column(name)
        word, low, high = self._negatable("BETWEEN", kind), self._literal(kind), self._literal(kind)
        joined = self._word("AND")
        return (
            f"{column} {word} {low[0]} {joined} {high[0]}",
            f"{quoted} {word} {low[1]} AND {high[1]}",
        )

    def _like(self, name: str, kind: ColumnType) -> tuple[str, str]:
        rng = self._rng
        column, quoted = self._column(name)
        pattern = "".join(rng.choice(PATTERN_PARTS) for _ in range(rng.randrange(5)))
        if rng.random() < 0.2:
            pattern = rng.choice(["{}", "%{}", "{}%", "%{}%"]).format(
                rng.choice(["a", "b", "é", "1"])
            )
        literal = quote(pattern)
        if rng.random() < 0.4:
            word = self._negatable("ILIKE", kind)
            negated = "NOT " * word.upper().startswith("NOT")
            return f"{column} {word} {literal}", f"({negated}ilike({literal}, {quoted}))"
        word = self._negatable("LIKE", kind)
        return f"{column} {word} {literal}", f"{quoted} {word} {literal} ESCAPE '\\'"

    def _null(self, name: str, kind: ColumnType) -> tuple[str, str]:
        column, quoted = self._column(name)
        word = self._rng.choice(["IS NULL", "IS NOT NULL", "IS NULL", "ISNULL", "NOTNULL"])
        self._nodes.add(f"{word} {kind}")
        return f"{column} {self._word(word)}", f"{quoted} {word}"

    def _flag(self, name: str, kind: ColumnType) -> tuple[str, str]:
        column, quoted = self._column(name)
        word = self._rng.choice(["", " IS TRUE", " IS FALSE", " IS NOT TRUE", " IS NOT FALSE"])
        self._nodes.add(f"flag{word}")
        return column + self._word(word), quoted + word

    def _negatable(self, word: str, kind: ColumnType) -> str:
        word = "NOT " * self._rng.randrange(2) + word
        self._nodes.add(f"{word} {kind}")
        return self._word(word)

    def _word(self, word: str) -> str:
        return self._rng.choice([word, word, word.lower(), word.title()])

    def _column(self, name: str) -> tuple[str, str]:
        """Write a column, texts in a quarter of the cases in lower or upper case."""
        quoted = f'"{name}"'
        bare = name.replace(".", "").isalnum() or name == "doc_id"
        ours = name if bare and self._rng.random() < 0.8 else quoted
        if "string" in ALL_COLUMNS[name] and self._rng.random() < 0.25:
            function = self._rng.choice(["lower", "upper"])
            self._nodes.add(f"{function} {ALL_COLUMNS[name]}")
            form = "{}_list({})" if ALL_COLUMNS[name].startswith("list") else "{}({})"
            return f"{self._word(function)}({ours})", form.format(function, quoted)
        return ours, quoted

    def _literal(self, kind: ColumnType) -> tuple[str, str]:
        rng = self._rng
        match kind:
            case "int64" | "float64":
                text = number(rng)
                self._nodes.add("negative number" if text.startswith("-") else "number")
                return text, text
            case "bool":
                value = self._word(rng.choice(["TRUE", "FALSE"]))
                return value, value
            case "date":
                text = quote(rng.choice(DATES).isoformat())
                return text, text
            case "timestamp":
                return time(rng)
            case _:
                text = quote(rng.choice(TEXTS))
                return text, text
