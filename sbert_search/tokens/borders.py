"""Places at which a text can be cut: the starts of headings, paragraphs, sentences and lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sbert_search.tokens.sentences import sentence_ends

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

    A heading is a line of Markdown that begins with one to six ``#`` and a blank. A paragraph
    begins after a blank line. The text below a heading belongs to the heading, so its first line is
    no border.

    Returns:
        Kind of each border. The key is the position of the first character at or after the border
        that is not white space.
    """
    nothing, line_end, sentence = Border.NOTHING, Border.LINE, Border.SENTENCE
    found: dict[int, Border] = {}
    for end in sentence_ends(text):
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
    """Find the kind of border before each token of a text, and where the text would be cut there.

    Args:
        text: The text.
        offsets: Start and end of each token in the text, in characters, in order.
        words: Index of the word of each token; None: the token is in no word.

    Returns:
        Kind of border before each token, int8 (n_tokens,), and the place of the cut in characters,
        int64 (n_tokens,). The place is the start of the token, or the start of a border between it
        and the token before: the ``#`` marks of a heading may have no tokens.
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
