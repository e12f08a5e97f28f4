"""Split long texts into passages that fit a model, at headings, paragraphs and sentences.

A passage is what the model embeds. A piece is what the tokenizer gets at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Abbreviations after which no sentence ends: initials, and words such as titles that precede a name
# or a number. Abbreviations that can end a sentence ("etc.", "Inc.") are not listed.
_SHORT = r"Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Capt|Lt|Rev|Hon|No|Nos|Vol|vs|cf|ca|approx|[A-Z]"
_SHORT_CHARS = 8  # length of the longest abbreviation, its full stop and the character before it
_NO_END = re.compile(rf"\b(?:{_SHORT}|e\.g|i\.e)\.$")
# The lookbehinds let a match start only at the start of a run of marks or of white space. Without
# them a long run would take quadratic time.
_END = re.compile(
    r"(?<![.!?…])[.!?…]+[\"'”’)\]]*(?=\s+[\"'“‘(\[]*(?P<next>[^\W_]))"  # noqa: RUF001
    # Marks of CJK, Arabic, Urdu, Hindi, Amharic, Burmese and Khmer; often no blank follows them.
    r"|[。！？｡؟۔।॥።။។][。！？｡؟۔।॥።။។.!?…]*[」』”’）》】»]*"  # noqa: RUF001
)
_CLAUSE_END = re.compile("[，、；：]+")  # noqa: RUF001  no blank follows these in CJK
_LINE_END, _BLANK_LINE = re.compile(r"(?<!\s)\s*\n\s*"), re.compile(r"(?<!\s)\s*\n\s*\n\s*")


def split_sentences(text: str, *, wrapped: bool = False) -> list[str]:
    """Split a text into sentences; each run of white space in a sentence becomes one blank.

    A sentence ends after a full stop, ellipsis, question mark or exclamation mark (and closing
    quotes) if white space and then a capital letter, a digit or a letter of a script without case
    follow; always after such a mark of CJK, Arabic, Hindi or another script with its own marks; and
    not after an initial, or an abbreviation such as "Dr." or "e.g.". Every line end ends a sentence
    too, unless lines were ``wrapped`` at a fixed width: then only a blank line does.
    """
    sentences = []
    for block in (_BLANK_LINE if wrapped else _LINE_END).split(text):
        start = 0
        for end in _sentence_ends(block):
            sentences.append(block[start:end])
            start = end
        sentences.append(block[start:])
    return [" ".join(sentence.split()) for sentence in sentences if sentence.strip()]


def _sentence_ends(text: str) -> Iterator[int]:
    """Yield the index after the last character of each sentence; a line end alone ends no sentence.

    The length of the text is not yielded, unless the text ends with a mark such as that of CJK.
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


class Section(NamedTuple):
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


_HEADING = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_TEXT = re.compile(r"\S")


class Border(IntEnum):
    """What starts at a place of a text; a text is cut at the highest kind of border in reach."""

    NOTHING = 0  # inside a word
    MARK = 1  # a punctuation mark or a word without white space before it
    WORD = 2
    LINE = 3
    SENTENCE = 4
    PARAGRAPH = 5
    HEADING = 6


def borders(text: str) -> dict[int, Border]:
    """Find the starts of headings, paragraphs, sentences and lines in a text.

    The key of a border is the position of the first character at or after it that is not white
    space. A heading is a line of Markdown. The text below a heading belongs to the heading, so its
    first line is no border. After a comma of CJK, which no blank follows, a word starts.
    """
    nothing, line_end, sentence = Border.NOTHING, Border.LINE, Border.SENTENCE
    found = {match.end(): Border.WORD for match in _CLAUSE_END.finditer(text)}
    found.pop(len(text), None)
    for end in _sentence_ends(text):
        if match := _TEXT.search(text, end):
            found[match.start()] = sentence
    line_start, kind = 0, nothing
    for line in text.splitlines(keepends=True):
        body = line.lstrip()
        at = line_start + len(line) - len(body)
        line_start += len(line)
        if not body:
            kind = Border.PARAGRAPH if kind else kind
        elif _HEADING.match(line):
            found[at], kind = Border.HEADING, nothing
        else:
            if not kind:
                found.pop(at, None)
            elif found.get(at, nothing) < kind:
                found[at] = kind
            kind = line_end
    return found


def token_borders(
    text: str, offsets: Sequence[tuple[int, int]], words: Sequence[int | None]
) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Find the kind of border before each token, int8 (n,), and where a cut would be, int64 (n,).

    The cut is at the start of the token, or at the start of a border between it and the token
    before: the ``#`` marks of a heading may have no tokens. ``words``: index of the word of each
    token.
    """
    spans = np.array(offsets, np.int64).reshape(-1, 2)
    cuts, ends = spans[:, 0].copy(), spans[:, 1]
    kinds = np.full(len(spans), Border.WORD, np.int8)
    touching = np.flatnonzero(cuts[1:] <= ends[:-1]) + 1
    kinds[touching[[not text[at : at + 1].isspace() for at in cuts[touching]]]] = Border.MARK
    kinds[1:][[word == before for before, word in pairwise(words)]] = Border.NOTHING
    found = borders(text)
    places, highest = np.array(list(found), np.int64), np.array(list(found.values()), np.int8)
    # The token of a border is the first one that ends after it. That token may begin before it: the
    # tokens of some models include the blank before a word.
    tokens = np.searchsorted(ends, places, "right")
    known = tokens < len(spans)
    np.maximum.at(kinds, tokens[known], highest[known])
    np.minimum.at(cuts, tokens[known], places[known])
    return kinds, cuts


PIECE_CHARS = 1 << 17  # limits memory: a tokenizer's result takes about 300 bytes per token

# A text is split piece by piece. More text may still change where the last two passages of a piece
# are cut. With overlap, up to nine passages may begin within the length of two passages, since each
# begins at least a quarter of a passage after the one before. So the last nine are split again.
_UNSURE = 9

Borders = Literal["sentences", "words"]
Spans = list[tuple[int, int]]


def pieces(text: str, n_chars: int = PIECE_CHARS) -> Iterator[str]:
    """Split a text into pieces of at most ``n_chars`` characters, before a blank if possible."""
    start = 0
    while len(text) - start > n_chars:
        stop = start + n_chars
        blank = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
        stop = blank if blank > 0 else stop
        yield text[start:stop]
        start = stop
    yield text[start:]


class Chunking(NamedTuple):
    """How a long text is split into passages.

    Attributes:
        tokens: Maximum number of tokens of a passage, special tokens and prompt included. None, or
            more than the model reads: what the model reads.
        overlap: Maximum number of tokens that a passage shares with the passage before; it is
            limited to half of the tokens of a passage.
        borders: ``sentences``: cut at the highest border in the second half of a passage, where
            headings are higher than paragraphs, then sentences, lines and words. ``words``: cut
            after the last word that fits, without overlap.
    """

    tokens: int | None = None
    overlap: int = 0
    borders: Borders = "sentences"

    @property
    def growth(self) -> int:
        """Maximum length of all passages of a text together, as a multiple of the text."""
        return 3 if self.overlap else 1

    def split(self, text: str, split_piece: Callable[[str], Spans]) -> Spans:
        """Split a text piece by piece, each by a function that tokenises it and calls `spans`."""
        return split_by_pieces(text, split_piece, 1 if self.borders == "words" else _UNSURE)

    def spans(
        self,
        text: str,
        offsets: Sequence[tuple[int, int]],
        words: Sequence[int | None],
        capacity: int,
    ) -> Spans:
        """Split a text into passages of at most ``capacity`` tokens, special ones and prompt aside.

        Returns start and end of each passage in characters. The passages cover the text; without
        overlap each starts at the end of the one before.
        """
        if self.borders == "words":
            return windows(offsets, words, len(text), capacity)
        kinds, cuts = token_borders(text, offsets, words)
        return _characters(_passages(kinds, capacity, self.overlap), cuts.tolist(), len(text))


AT_BORDERS = Chunking()
WHOLE_WORDS = Chunking(borders="words")


def split_by_pieces(text: str, split: Callable[[str], Spans], unsure: int = 1) -> Spans:
    """Split a text by a function that gets one piece of it at a time, as if it got the whole text.

    The last ``unsure`` passages of a piece, which the following text may change, are split again.
    """
    spans: Spans = []
    start, size = 0, PIECE_CHARS
    while start + size < len(text):
        passages = split(text[start : start + size])
        if len(passages) <= unsure:
            size *= 2
            continue
        spans += [(start + first, start + last) for first, last in passages[:-unsure]]
        start, size = start + passages[-unsure][0], PIECE_CHARS
    return spans + [(start + first, start + last) for first, last in split(text[start:])]


def windows(
    offsets: Sequence[tuple[int, int]], words: Sequence[int | None], n_chars: int, capacity: int
) -> Spans:
    """Split a text into passages of at most ``capacity`` tokens, between words if possible.

    Returns start and end of each passage in characters; they cover the text without overlap.
    """
    spans, first = [], 0
    while first + capacity < len(offsets):
        last = _word_start(words, first + capacity, lowest=first + 1)
        spans.append((first, last))
        first = last
    starts = [start for start, _ in offsets]
    return _characters([*spans, (first, len(offsets))], starts, n_chars)


def _word_start(words: Sequence[int | None], token: int, lowest: int) -> int:
    """Return the first token of the word of ``token``; ``token`` if it is before ``lowest``."""
    start = token
    while start > lowest and words[start] == words[start - 1]:
        start -= 1
    return start if words[start] != words[start - 1] else token


def _passages(kinds: NDArray[np.int8], capacity: int, overlap: int) -> Spans:
    """Split tokens into passages of at most ``capacity`` tokens at the highest borders.

    A passage ends in its second half, at the last of the highest borders there. If two passages
    hold the rest of the text, it is cut near its middle, so that the last one is not a scrap.
    """
    overlap = min(overlap, capacity // 2)
    spans, first = [], 0
    while (rest := len(kinds) - first) > capacity:
        # The next passage may begin ``overlap`` tokens before the cut. No cut is before ``low``, so
        # each passage begins at least (capacity - overlap) / 2 tokens after the one before.
        low, aim = (capacity + overlap + 1) // 2, capacity
        if rest + overlap <= 2 * capacity:
            low, aim = max(low, rest + overlap - capacity), (rest + overlap + 1) // 2
        reach = kinds[first + low : first + capacity + 1]
        places = low + np.flatnonzero(reach == reach.max())
        cut = first + int(places[np.argmin(np.abs(places - aim))])
        spans.append((first, cut))
        first = _start(kinds, cut, overlap)
    return [*spans, (first, len(kinds))]


def _start(kinds: NDArray[np.int8], cut: int, overlap: int) -> int:
    """Return the first token of the passage after a cut, of the last ``overlap`` tokens before it.

    It is the first at the highest kind of border, where all from sentences up count as one kind.
    """
    # A passage that starts with a heading shares no tokens.
    if overlap == 0 or kinds[cut] == Border.HEADING:
        return cut
    before = kinds[cut - overlap : cut]
    kind = min(int(before.max()), Border.SENTENCE)
    return cut - overlap + int(np.argmax(before >= kind))


def _characters(tokens: Spans, cuts: Sequence[int], n_chars: int) -> Spans:
    """Turn passages in tokens into passages in characters; ``cuts`` are those of `token_borders`.

    Passages without characters are left out: some tokenizers make tokens of no characters.
    """
    starts = [0] + [cuts[first] for first, _ in tokens[1:]]
    ends = [cuts[last] for _, last in tokens[:-1]] + [n_chars]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]
