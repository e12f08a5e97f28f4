"""Print hits on a terminal, or as JSON records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from sbert_search.base.progress import visible
from sbert_search.cli.console import say, terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from sbert_search.records import Hit, MetadataValue
    from sbert_search.search.facets import Facet

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


def show_hits(hits: Iterable[Hit]) -> None:
    """Print each hit: rank, score, title, id, a snippet, and answer, matched words and metadata."""
    console = terminal()
    width = console.width - 4
    for hit in hits:
        lines = chain.from_iterable(
            _wrapped(text, console, width, most) for text, most in _paragraphs(hit)
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


def _paragraphs(hit: Hit) -> Iterator[tuple[Text, int]]:
    """Yield the paragraphs of a hit, each with the maximum number of its lines."""
    from rich.text import Text

    title = _line(hit.title)
    head = Text.assemble((f"{hit.rank:>2}  ", "dim"), (f"{hit.score:.4f}", "cyan"), "  ")
    head.append(title or _line(hit.doc_id), "bold")
    if title and title != hit.doc_id:
        head.append(f"  {_line(hit.doc_id)}", "dim")
    if hit.chunk:
        head.append(f"  chunk {hit.chunk}", "dim")
    yield head, 2
    yield snippet_of(hit), 6
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
