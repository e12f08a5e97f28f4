"""Print the results of commands on stdout: tables for people, JSON lines for programs."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from sbert_search.base.progress import visible

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 10_000  # largest width of a table in a pipe or file, where lines are not wrapped
# A terminal that reports fewer than 10 columns does not know its width; 80 are assumed.
_LEAST_WIDTH, _USUAL_WIDTH = 10, 80
_LONG_WORD = 16  # characters; longer words of a table may be broken
REJECTED_ROWS = 3  # exit code of a command that rejected rows

# Characters that JSON allows in a string but that a terminal interprets (DEL, C1 controls), that
# some readers take for a line end (U+2028, U+2029), or that no encoding can write (lone
# surrogates).
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def emit(record: Mapping[str, object]) -> None:
    """Print one JSON line.

    Dates and times are converted with ``str``. Infinity and NaN, which JSON does not have, are
    written as null.

    Control characters, line separators and characters that the encoding of stdout lacks are
    written as JSON escapes. The values that a JSON parser reads stay the same.
    """
    try:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:  # Infinity or NaN
        record = {name: _finite(value) for name, value in record.items()}
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, default=str)
    try:
        line.encode(sys.stdout.encoding or "utf-8", "surrogatepass")
    except UnicodeEncodeError:
        line = json.dumps(record, allow_nan=False, default=str)
    _print(_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", line))


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_finite, value))
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(text: str = "") -> None:
    """Print text for people; control characters are written as escapes."""
    _print(visible(text))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def terminal() -> Console:
    """Return a console of the library rich that writes to stdout.

    Colours are written if stdout is a terminal or the environment variable FORCE_COLOR is set,
    unless NO_COLOR is set.
    """
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False, markup=False, emoji=False)
    if console.width < _LEAST_WIDTH:
        console.width = _USUAL_WIDTH
    return console


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns of numbers are aligned right, even if some numbers are missing."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console = terminal()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPE_WIDTH
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    cells = [list(row) for row in rows]
    for position, column in enumerate(columns):
        values = [row[position] for row in cells if row[position] is not None]
        numeric = bool(values) and all(
            isinstance(value, (int, float)) and not isinstance(value, bool) for value in values
        )
        # Without a minimum width of the column, rich breaks numbers and words.
        words = chain([column], (_cell(value) for value in values))
        longest = max(len(word) for text in words for word in text.split() or [""])
        table.add_column(
            column,
            justify="right" if numeric else "left",
            overflow="fold",
            min_width=min(longest, _LONG_WORD),
        )
    for row in cells:
        table.add_row(*(_cell(value) for value in row))
    console.print(table)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print each name with its value on a line of its own; the values are aligned in a column."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        say(f"{name:<{width}}  {_cell(value)}")


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if isinstance(value, float) else visible(str(value))


def size_text(n_bytes: float) -> str:
    """Format a number of bytes with a unit in powers of 1,024, such as ``1.5 MiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while round(n_bytes, 0 if units[0] == "B" else 1) >= 1024 and len(units) > 1:
        n_bytes /= 1024
        del units[0]
    return f"{n_bytes:,.0f} B" if units[0] == "B" else f"{n_bytes:,.1f} {units[0]}"
