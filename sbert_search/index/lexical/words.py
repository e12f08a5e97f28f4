"""Split texts into words, in the form in which lexical search compares them.

A word is a run of letters, digits and underscores, with the combining marks after them, such as the
vowel signs of Hindi, the points of Hebrew and the tone marks of Yoruba.

An apostrophe separates words. But a single letter that it joins to another word, as in ``it's``,
``don't`` and ``l'eau``, is not a word of its own, or "vitamin S" would be found in each text with a
possessive. The letter in "plan B's" is a word; its s is not.
"""

from __future__ import annotations

import re
import unicodedata

MARK = "\u0300"  # stands for every combining mark, since Python's \w matches none

_APOSTROPHE = "['\u2019\uff07]"  # the three of Lucene's EnglishPossessiveFilter

_RUN = re.compile(rf"\w[\w{MARK}]*")


def _indexed(more: str) -> re.Pattern[str]:
    """Make the pattern of an indexed word, given the class of characters after the first one.

    A word of one character is a digit, or a letter that no apostrophe joins to another word.
    """
    alone = rf"(?<!{more}{_APOSTROPHE}.)(?!{_APOSTROPHE}(?!s(?!{more}))[^\W\d_])"
    return re.compile(rf"\w(?:{more}+|(?<=\d)|(?<=[^\W\d_]){alone})")


_WORD = _indexed(r"\w")  # faster than the other pattern, for texts without marks
_WORD_WITH_MARKS = _indexed(rf"[\w{MARK}]")


class _Marks(dict[str, bool]):
    """Maps a character to whether it is a combining mark."""

    def __missing__(self, character: str) -> bool:
        self[character] = found = unicodedata.category(character).startswith("M")
        return found


_MARKS = _Marks()


def folded(text: str) -> str:
    """Return a text in the form in which words are compared: NFC and lower case.

    Soft hyphens and zero-width joiners are removed. The Turkish İ becomes i; Python's ``lower``
    would return an i with a combining dot.
    """
    low = unicodedata.normalize("NFC", text).lower()
    if low.isascii():
        return low
    return low.replace("i\u0307", "i").replace("\u00ad", "").replace("\u200d", "")


def has_marks(text: str) -> bool:
    """Whether a text has a combining mark."""
    return not text.isascii() and any(map(_MARKS.__getitem__, set(text)))


def marks_alike(text: str) -> str:
    """Replace each combining mark by `MARK`."""
    if not has_marks(text):
        return text
    return "".join(MARK if _MARKS[character] else character for character in text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the index of the first character of each word, and the index after its last one."""
    return [match.span() for match in _RUN.finditer(marks_alike(text))]


def all_words(text: str) -> list[str]:
    """Split a folded text into words, including those of one character."""
    return [text[start:end] for start, end in word_spans(text)]


def indexed_words(text: str) -> list[str]:
    """Split a text into folded words that are indexed, including stop words."""
    text = folded(text)
    if not has_marks(text):
        return _WORD.findall(text)
    return [text[slice(*match.span())] for match in _WORD_WITH_MARKS.finditer(marks_alike(text))]
