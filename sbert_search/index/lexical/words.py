"""Split texts into words, in the form in which lexical search compares them.

A word is a run of letters, digits and underscores, with the combining marks after them, such as the
vowel signs of Hindi, the points of Hebrew and the tone marks of Yoruba.
"""

from __future__ import annotations

import re
import unicodedata

SHORTEST = 2  # smallest number of characters of an indexed word, as in bm25s and scikit-learn

MARK = "\u0300"  # stands for every combining mark, since Python's \w matches none

_RUN = re.compile(rf"\w[\w{MARK}]*")
_WITHOUT_MARKS = re.compile(rf"\w{{{SHORTEST},}}")


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
    """Split a text into folded words of at least `SHORTEST` characters, including stop words."""
    text = folded(text)
    if not has_marks(text):
        return _WITHOUT_MARKS.findall(text)
    return [word for word in all_words(text) if len(word) >= SHORTEST]


def indexed_words_without_marks(text: str) -> list[str]:
    """Split a text as indexes of version 0.1 do: a combining mark separates words."""
    return _WITHOUT_MARKS.findall(unicodedata.normalize("NFC", text).lower())
