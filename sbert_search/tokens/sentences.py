"""Split text into sentences by rules."""

from __future__ import annotations

import re

# Abbreviations that do not end a sentence: titles and others before a name or number, and initials.
# For a form that can end a sentence ("etc.", "Inc."), the text after it decides.
_SHORT = r"Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Capt|Lt|Rev|Hon|No|Nos|Vol|vs|cf|ca|approx|[A-Z]"
_SHORT_CHARS = 8  # length of the longest, with its full stop and the word boundary before it
_NO_END = re.compile(rf"\b(?:{_SHORT}|e\.g|i\.e)\.$")
_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s+[\"'“‘(\[]*[^\W_a-zß-öø-ÿ])|[。！？]+[」』”）]*")  # noqa: RUF001
_LINE_END, _BLANK_LINE = re.compile(r"\s*\n\s*"), re.compile(r"\s*\n\s*\n\s*")


def split_sentences(text: str, *, wrapped: bool = False) -> list[str]:
    """Split a text into sentences; runs of white space inside become one blank.

    A sentence ends after a full stop, question mark or exclamation mark (and closing quotes) if a
    capital letter, a digit or an uncased script follows. It does not end after a title or an
    initial.

    Args:
        text: Any text.
        wrapped: Whether lines were wrapped at a width, so that only a blank line ends a sentence;
            otherwise every line end does.
    """
    sentences = []
    for block in (_BLANK_LINE if wrapped else _LINE_END).split(text):
        start = 0
        for match in _END.finditer(block):
            end = match.end()
            if not _NO_END.search(block, max(start, end - _SHORT_CHARS), end):
                sentences.append(block[start:end])
                start = end
        sentences.append(block[start:])
    return [" ".join(sentence.split()) for sentence in sentences if sentence.strip()]
