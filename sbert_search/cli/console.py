"""Print results and hits on stdout: tables for people, JSON lines for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from sbert_search.base.progress import visible

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console
    from rich.text import Text

    from sbert_search.records import Hit, MetadataValue
    from sbert_search.search.facets import Facet


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
    """Print one JSON line; Infinity and NaN, which JSON does not have, are written as null.

    Dates and times are converted with ``str``. Control characters, line separators and characters
    that the encoding of stdout lacks are written as JSON escapes.
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
    """Return a console of the library rich for stdout; FORCE_COLOR and NO_COLOR count."""
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


def show_report(report: DataclassInstance, *, as_json: bool) -> None:
    """Print the fields of a report."""
    facts = dataclasses.asdict(report)
    emit(facts) if as_json else show_facts(facts)


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


SNIPPET_CHARS = 300  # characters of a hit's text to print
_FACET_CHARS = 80  # characters of a value that a facet shows


def hit_record(hit: Hit) -> dict[str, object]:
    """Return the JSON record of a hit."""
    answer = {} if hit.answer is None else {"answer": dataclasses.asdict(hit.answer)}
    return {
        "rank": hit.rank,
        "doc_id": hit.doc_id,
        "score": hit.score,
        "title": hit.title,
        "text": hit.text,
        "metadata": dict(hit.metadata),
        "passage": hit.passage,
        "chunk": hit.chunk,
        "span": list(hit.span),
        "best_sentence": hit.best_sentence,
        "matched_words": list(hit.matched_words),
        "stages": {name: dataclasses.asdict(stage) for name, stage in hit.stages.items()},
        **answer,
    }


def facet_record(facet: Facet) -> dict[str, object]:
    """Return the JSON record of a facet."""
    return {
        "facet": facet.column,
        "counts": [{"value": value, "count": count} for value, count in facet.counts.items()],
        "other": facet.other,
        "missing": facet.missing,
        "low": facet.low,
        "high": facet.high,
        "ranges": [dataclasses.asdict(one) for one in facet.ranges],
        "total": facet.total,
    }


def show_facet(facet: Facet) -> None:
    """Print a column with its most frequent values, or with ranges of numbers or dates."""
    limits = f" (from {facet.low} to {facet.high})" if facet.low is not None else ""
    say(f"{facet.column}{limits}")
    rows = [(str(value), count) for value, count in facet.counts.items()]
    rest = [("other values", facet.other), ("no value", facet.missing)]
    if facet.ranges:
        last = len(facet.ranges)
        rows = [
            (
                f"{one.low} to {one.high}" if i == last else f"{one.low} to below {one.high}",
                one.count,
            )
            for i, one in enumerate(facet.ranges, 1)
        ]
        rest = rest[1:]
    for value, count in [*rows, *(row for row in rest if row[1])]:
        say(f"  {count:>8,}  {_line(value)[:_FACET_CHARS]}")


def show_hits(hits: Iterable[Hit], *, scored: bool = True) -> None:
    """Print each hit: rank, score, title, id, a snippet, and answer, matched words and metadata."""
    console = terminal()
    width = console.width - 4
    for hit in hits:
        lines = chain.from_iterable(
            _wrapped(text, console, width, most) for text, most in _paragraphs(hit, scored)
        )
        shown = next(lines)
        for line in lines:
            line.rstrip()
            shown.append("\n    ").append_text(line)
        console.print(shown, end="\n\n")


def _wrapped(text: Text, console: Console, width: int, most: int) -> list[Text]:
    """Wrap a text to at most ``most`` lines; if lines are cut, the last ends in an ellipsis."""
    lines = list(text.wrap(console, width))
    if len(lines) > most:
        lines = lines[:most]
        lines[-1].rstrip()
        lines[-1].truncate(width - 2)
        lines[-1].append(" …")
    return lines


def _paragraphs(hit: Hit, scored: bool) -> Iterator[tuple[Text, int]]:
    """Yield the paragraphs of a hit, each with the maximum number of its lines."""
    from rich.text import Text

    title = _line(hit.title)
    score = f"{hit.score:.4f}  " if scored else ""
    head = Text.assemble((f"{hit.rank:>2}  ", "dim"), (score, "cyan"))
    head.append(title or _line(hit.doc_id), "bold")
    if title and title != hit.doc_id:
        head.append(f"  {_line(hit.doc_id)}", "dim")
    if hit.chunk:
        head.append(f"  chunk {hit.chunk}", "dim")
    yield head, 2
    if snippet := snippet_of(hit):
        yield snippet, 6
    if hit.answer is not None:
        yield Text(f"answer: {_line(hit.answer.text)}  ({hit.answer.score:.2f})", "bold"), 2
    if why := _why(hit):
        yield Text(_line(why), "dim"), 2
    if hit.metadata:
        values = (f"{name} {_shown(value)}" for name, value in hit.metadata.items())
        yield Text(_line(" · ".join(values)), "dim"), 2


def _line(text: str) -> str:
    """Put a text on one line; control characters are written as escapes."""
    return visible(" ".join(text.split()))


def _shown(value: MetadataValue) -> str:
    """Format a value or a list of values; times are cut to whole seconds."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    return value.isoformat(" ", "seconds") if isinstance(value, datetime) else str(value)


def _why(hit: Hit) -> str:
    """Name the matched words and, if there were several stages, the rank and score of each."""
    stages = [
        f"{name} {'' if stage.rank is None else f'{stage.rank} '}({stage.score:.3g})"
        for name, stage in hit.stages.items()
    ]
    words = [f"matched: {', '.join(hit.matched_words)}"] if hit.matched_words else []
    return " · ".join([*words, *(stages if len(stages) > 1 else ())])


def snippet_of(hit: Hit) -> Text:
    """Cut the text around the answer or the best sentence, which is shown in bold green."""
    from rich.text import Text

    # The snippet shows the best sentence, which is cut after 2 * SNIPPET_CHARS characters. If the
    # sentence has fewer than SNIPPET_CHARS, the text around it fills the rest: one third before the
    # sentence, two thirds after it. Each cut is moved to a space, so that words stay whole.
    text, best = _line(hit.text), _line(hit.best_sentence)
    at = text.find(best)
    if at < 0:  # the best passage has only the title
        best, at = "", 0
    if hit.answer is not None:
        best = _line(hit.answer.text)
        at = len(_line(f"{hit.text[: hit.answer.start]}.")) - 1
    end = at + min(len(best), 2 * SNIPPET_CHARS)
    before = max(SNIPPET_CHARS - len(best), 0) // 3
    start = max(at - before, 0) if end > SNIPPET_CHARS else 0
    stop = max(start + SNIPPET_CHARS, end)
    if 0 < start < at:
        start = text.find(" ", start, at) + 1 or at
    if stop < len(text):
        space = text.rfind(" ", end if end == at + len(best) else at + 1, stop + 1)
        stop = space if space > 0 else stop
    end = min(end, stop)
    shown = Text("… " if start else "")
    shown.append(text[start:at])
    shown.append(text[at:end], "bold green")
    shown.append(text[end:stop])
    shown.append(" …" if stop < len(text) else "")
    return shown
