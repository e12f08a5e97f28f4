"""Split text into sentences by rules for punctuation, capital letters and abbreviations."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
