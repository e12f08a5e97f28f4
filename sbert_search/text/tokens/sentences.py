"""Split text into sentences by rules, and documents into sections at their headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Abbreviations after which no sentence ends: initials, and words such as titles that precede a name
# or a number. Abbreviations that can end a sentence ("etc.", "Inc.") are not listed.
_SHORT = r"Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Capt|Lt|Rev|Hon|No|Nos|Vol|vs|cf|ca|approx|[A-Z]"
_SHORT_CHARS = 8  # length of the longest abbreviation, its full stop and the character before it
_NO_END = re.compile(rf"\b(?:{_SHORT}|e\.g|i\.e)\.$")
# The lookbehinds let a match start only at the start of a run of marks or of white space. Without
# them a long run would take quadratic time.
_END = re.compile(
    r"(?<![.!?…])[.!?…]+[\"'”’)\]]*(?=\s+[\"'“‘(\[]*(?P<next>[^\W_]))"  # noqa: RUF001
    r"|[。！？]+[」』”）]*"  # noqa: RUF001
)
_LINE_END, _BLANK_LINE = re.compile(r"(?<!\s)\s*\n\s*"), re.compile(r"(?<!\s)\s*\n\s*\n\s*")


def split_sentences(text: str, *, wrapped: bool = False) -> list[str]:
    """Split a text into sentences; each run of white space in a sentence becomes one blank.

    A sentence ends after a full stop, ellipsis, question mark or exclamation mark (and closing
    quotes) if white space and then a capital letter, a digit or a letter of a script without case
    follow. A sentence always ends after a CJK full stop, question mark or exclamation mark. A
    sentence does not end after an initial, or after an abbreviation such as "Dr." or "e.g.".

    Args:
        text: Any text.
        wrapped: True: lines were wrapped at a fixed width, so a line end does not end a sentence,
            but a blank line does. False: every line end ends a sentence.
    """
    sentences = []
    for block in (_BLANK_LINE if wrapped else _LINE_END).split(text):
        start = 0
        for end in sentence_ends(block):
            sentences.append(block[start:end])
            start = end
        sentences.append(block[start:])
    return [" ".join(sentence.split()) for sentence in sentences if sentence.strip()]


def sentence_ends(text: str) -> Iterator[int]:
    """Yield the index after the last character of each sentence; a line end alone ends no sentence.

    The length of the text is not yielded, unless the text ends with a CJK mark.
    """
    start = 0
    for match in _END.finditer(text):
        end = match.end()
        if match["next"] is not None and match["next"].islower():
            continue
        if not _NO_END.search(text, max(start, end - _SHORT_CHARS), end):
            yield end
            start = end


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
