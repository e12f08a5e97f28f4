"""Find which of many words are within a few edits of a given word, all words at a time.

An edit inserts, deletes or replaces a character, or swaps two neighbours; no part of a word is
edited twice. The smallest number of edits is the optimal string alignment distance.

Source: Damerau 1964, A technique for computer detection and correction of spelling errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Characters:
    """The characters of some words, one word after the other.

    Attributes:
        codes: Code points of all words, uint32 (n_chars,).
        starts: Index in ``codes`` of the first character of each word, then ``n_chars``; int64
            (n_words + 1,). No word is empty.
    """

    codes: NDArray[np.uint32]
    starts: NDArray[np.int64]


def code_points(text: str) -> NDArray[np.uint32]:
    """Return the code points of a text, uint32 (n_chars,)."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def within(word: str, words: Characters, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the words that are at most ``most`` edits away from a word.

    Returns:
        Indices of these words, ascending, int64 (n,), and their distances, int64 (n,).
    """
    if len(words.starts) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    codes, lengths = code_points(word), np.diff(words.starts)
    at = np.flatnonzero(abs(lengths - len(codes)) <= most)
    # An edit removes at most one character from the set of a word's characters and adds at most
    # one. The sets are compared as 64-bit masks; few words remain for the slower exact computation.
    sets = np.bitwise_or.reduceat(_bits(words.codes), words.starts[:-1])[at]
    own = np.bitwise_or.reduce(_bits(codes))
    removed, added = np.bitwise_count(own & ~sets), np.bitwise_count(sets & ~own)
    at = at[(removed <= most) & (added <= most)]
    distances = _distances(codes, words, at, most)
    near = distances <= most
    return at[near], distances[near]


def _bits(codes: NDArray[np.uint32]) -> NDArray[np.uint64]:
    return np.uint64(1) << (codes & np.uint32(63)).astype(np.uint64)


def _distances(
    word: NDArray[np.uint32], words: Characters, at: NDArray[np.int64], most: int
) -> NDArray[np.int64]:
    """Compute the distances of the words at the indices ``at``; above ``most`` they are not exact.

    The function fills the table of Levenshtein's algorithm for all these words together: cell
    (i, j) is the distance of the first i characters of ``word`` from the first j characters of the
    other word. Only cells with ``abs(i - j) <= most`` are computed, since the distance in a cell is
    at least ``abs(i - j)``.
    """
    starts = words.starts[at]
    lengths = words.starts[at + 1] - starts
    width = int(lengths.max(initial=0))
    places = np.arange(width)[:, None]
    inside = np.minimum(starts + places, max(len(words.codes) - 1, 0))
    chars = words.codes[inside]  # (width, n); characters after the end of a word have no effect
    far = most + 1
    before_last = last = np.full((width + 1, len(at)), far)
    last[: most + 1] = np.arange(width + 1)[: most + 1, None]
    for i in range(1, len(word) + 1):
        row = np.full((width + 1, len(at)), far)
        if i <= most:
            row[0] = i
        for j in range(max(1, i - most), min(width, i + most) + 1):
            same = chars[j - 1] == word[i - 1]
            best = np.minimum(np.minimum(last[j], row[j - 1]) + 1, last[j - 1] + ~same)
            if i > 1 and j > 1:
                swapped = (chars[j - 1] == word[i - 2]) & (chars[j - 2] == word[i - 1])
                best = np.where(swapped, np.minimum(best, before_last[j - 2] + 1), best)
            row[j] = best
        before_last, last = last, row
    distances: NDArray[np.int64] = last[lengths, np.arange(len(at))]
    return distances
