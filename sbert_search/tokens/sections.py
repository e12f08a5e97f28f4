"""The sections of a document, by its own headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sbert_search.tokens.sentences import split_sentences

_MARKED = re.compile(
    r"#{1,6}\s+(?P<markdown>\S.*)|(?P<bars>={1,6})\s*(?P<wiki>[^=].*?)\s*(?P=bars)"
)
# What extracts of Wikipedia leave of a heading: a line of a few words that ends in a full stop.
_BARE = re.compile(r"[A-Z0-9][^.!?;:]*\.")
_MAX_CHARS, _MAX_WORDS = 60, 8


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document; the heading of what stands before the first one is ""."""

    heading: str
    sentences: tuple[str, ...]


def split_sections(text: str) -> list[Section]:
    """Cut a text at its headings; a section without a sentence is left out.

    A heading is a line of its own: Markdown (``# History``) or wiki (``== History ==``); in a text
    that has none of these, a short line that ends in a full stop and is followed by a longer one
    (``History.``).
    """
    heading, paragraphs, sections = "", list[str](), list[Section]()
    for line, found in _lines(text):
        if found is None:
            paragraphs.append(line)
        else:
            sections.append(_section(heading, paragraphs))
            heading, paragraphs = found, []
    sections.append(_section(heading, paragraphs))
    return [section for section in sections if section.sentences]


def _lines(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield each line that is not blank, with its heading if it is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [_MARKED.fullmatch(line) for line in lines]
    if any(marked):
        found = [match and (match["markdown"] or match["wiki"]) for match in marked]
    else:
        short = [_looks_bare(line) for line in lines]
        found = [None] * len(lines)
        for place in range(1, len(lines) - 1):
            if short[place] and not short[place + 1]:
                found[place] = lines[place].removesuffix(".")
    yield from zip(lines, found, strict=True)


def _looks_bare(line: str) -> bool:
    short = len(line) <= _MAX_CHARS and len(line.split()) <= _MAX_WORDS
    return short and _BARE.fullmatch(line) is not None


def _section(heading: str, paragraphs: list[str]) -> Section:
    return Section(heading, tuple(split_sentences("\n".join(paragraphs))))
