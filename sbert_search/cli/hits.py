"""Print hits on a terminal, or as JSON records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sbert_search.cli.console import terminal
from sbert_search.runtime.visible import visible

if TYPE_CHECKING:
    from rich.text import Text

    from sbert_search.records import Hit

SNIPPET_CHARS = 300


def hit_record(hit: Hit) -> dict[str, object]:
    """Return the JSON record of a hit."""
    return {
        "rank": hit.rank,
        "doc_id": hit.doc_id,
        "score": hit.score,
        "title": hit.title,
        "text": hit.text,
        "metadata": dict(hit.metadata),
        "passage": list(hit.passage),
        "best_sentence": hit.best_sentence,
        "matched_words": list(hit.matched_words),
        "stages": {name: dataclasses.asdict(stage) for name, stage in hit.stages.items()},
    }


def show_hits(hits: Iterable[Hit]) -> None:
    """Print rank, score, title and id of each hit, and a snippet around its best sentence."""
    from rich.text import Text

    console = terminal()
    for hit in hits:
        lines = (
            line for text in _paragraphs(hit) for line in text.wrap(console, console.width - 4)
        )
        console.print(next(lines))
        for line in lines:
            line.rstrip()
            console.print(Text.assemble("    ", line))
        console.print()


def _paragraphs(hit: Hit) -> Iterator[Text]:
    from rich.text import Text

    title = _line(hit.title)
    head = Text.assemble((f"{hit.rank:>2}  ", "dim"), (f"{hit.score:.4f}", "cyan"), "  ")
    head.append(title or _line(hit.doc_id), "bold")
    if title and title != hit.doc_id:
        head.append(f"  {_line(hit.doc_id)}", "dim")
    yield head
    yield _snippet(hit)
    if why := _why(hit):
        yield Text(_line(why), "dim")
    if hit.metadata:
        values = (f"{name} {value}" for name, value in hit.metadata.items())
        yield Text(_line(" · ".join(values)), "dim")


def _line(text: str) -> str:
    """Put a text on one line; control characters are written as escapes."""
    return visible(" ".join(text.split()))


def _why(hit: Hit) -> str:
    """Name the matched words and, if there were several stages, the rank and score of each."""
    stages = [f"{name} {stage.rank} ({stage.score:.3g})" for name, stage in hit.stages.items()]
    words = [f"words: {', '.join(hit.matched_words)}"] if hit.matched_words else []
    return " · ".join([*words, *(stages if len(stages) > 1 else ())])


def _snippet(hit: Hit) -> Text:
    """Cut the text around the best sentence, which is shown in bold green."""
    from rich.text import Text

    # A third of the spare characters goes before the best sentence and the rest after it. A long
    # best sentence is cut after 2 * SNIPPET_CHARS. Cuts move to a space, so that words stay whole.
    text, best = _line(hit.text), _line(hit.best_sentence)
    at = max(text.find(best), 0) if best else 0
    end = at + len(best)
    spare = max(SNIPPET_CHARS - len(best), 0)
    start = max(at - spare // 3, 0) if end > SNIPPET_CHARS else 0
    stop = max(start + SNIPPET_CHARS, min(end, at + 2 * SNIPPET_CHARS))
    start = text.find(" ", start) + 1 if start else 0
    stop = text.rfind(" ", end, stop) if end < text.rfind(" ") and stop < len(text) else stop
    shown = Text("… " if start else "")
    shown.append(text[start:at])
    shown.append(text[at:end], "bold green")
    shown.append(text[end:stop])
    shown.append(" …" if stop < len(text) else "")
    return shown
