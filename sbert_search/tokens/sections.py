"""Split a document into sections at its headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sbert_search.tokens.sentences import split_sentences

_MARKDOWN = re.compile(r"#{1,6}\s+(\S.*)")
_BARS = re.compile(r"={1,6}(?!=)")  # what begins and ends a heading in wiki syntax
# A heading in plain-text extracts of Wikipedia: a line of a few words that ends in a full stop.
_BARE = re.compile(r"[A-Z0-9][^.!?;:]*\.")
_MAX_CHARS, _MAX_WORDS = 60, 8


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a document. The text before the first heading is a section with heading ""."""

    heading: str
    sentences: tuple[str, ...]


def split_sections(text: str) -> list[Section]:
    """Split a text at its headings; a section without sentences is left out.

    A heading is a line in Markdown (``# History``) or wiki syntax (``== History ==``). In a text
    without such lines, a heading is a short line that ends in a full stop (``History.``), except
    the first line, the last line, and a line directly before another short line of this kind.
    """
    heading, paragraphs, sections = "", list[str](), list[Section]()
    for line, line_heading in _lines(text):
        if line_heading is None:
            paragraphs.append(line)
        else:
            sections.append(_section(heading, paragraphs))
            heading, paragraphs = line_heading, []
    sections.append(_section(heading, paragraphs))
    return [section for section in sections if section.sentences]


def _lines(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield each line that is not blank, with its heading text; None if it is not a heading."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    headings = [_marked_heading(line) for line in lines]
    if not any(headings):
        short = [_looks_bare(line) for line in lines]
        for index in range(1, len(lines) - 1):
            if short[index] and not short[index + 1]:
                headings[index] = lines[index].removesuffix(".")
    yield from zip(lines, headings, strict=True)


def _marked_heading(line: str) -> str | None:
    """Return the text of a heading in Markdown or wiki syntax; None if the line is not one."""
    if markdown := _MARKDOWN.fullmatch(line):
        return markdown[1]
    if (bars := _BARS.match(line)) and line[bars.end() :].endswith(bars[0]):
        return line[bars.end() : -bars.end()].strip() or None
    return None


def _looks_bare(line: str) -> bool:
    short = len(line) <= _MAX_CHARS and len(line.split()) <= _MAX_WORDS
    return short and _BARE.fullmatch(line) is not None


def _section(heading: str, paragraphs: list[str]) -> Section:
    return Section(heading, tuple(split_sentences("\n".join(paragraphs))))
