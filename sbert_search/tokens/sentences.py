"""Text to sentences, by rule."""

from __future__ import annotations

import re

# Not the end of a sentence: titles and other short forms that a name or number follows, and
# initials. A form that can end a sentence as well ("etc.", "Inc.") is left to what follows it.
_SHORT = r"Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Capt|Lt|Rev|Hon|No|Nos|Vol|vs|cf|ca|approx|[A-Z]"
_SHORT_CHARS = 8  # the longest of them, its full stop and the border before it
_NO_END = re.compile(rf"\b(?:{_SHORT}|e\.g|i\.e)\.$")
_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s+[\"'“‘(\[]*[^\W_a-zß-öø-ÿ])|[。！？]+[」』”）]*")  # noqa: RUF001
_LINE_END, _BLANK_LINE = re.compile(r"\s*\n\s*"), re.compile(r"\s*\n\s*\n\s*")


def split_sentences(text: str, *, wrapped: bool = False) -> list[str]:
    """Cut a text into sentences; white space inside them becomes one blank.

    A sentence ends behind a full stop, question or exclamation mark (and closing quotes) where a
    capital letter, a digit or an uncased script follows, but not behind a title or an initial.

    Args:
        text: Any text.
        wrapped: Lines were broken to a width, so only a blank line ends a sentence; otherwise every
            line end does.
    """
    found = []
    for block in (_BLANK_LINE if wrapped else _LINE_END).split(text):
        start = 0
        for match in _END.finditer(block):
            end = match.end()
            if not _NO_END.search(block, max(start, end - _SHORT_CHARS), end):
                found.append(block[start:end])
                start = end
        found.append(block[start:])
    return [" ".join(sentence.split()) for sentence in found if sentence.strip()]
