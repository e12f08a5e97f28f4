"""Find exact phrases: consecutive words of a title or of a text.

Postings (for each term, the documents that contain it) say which documents have the words of a
phrase, but not where. So the texts of these documents are read (docs/decisions.md: Phrases are
found by reading candidates).
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import Advance
from sbert_search.index.lexical.analyzer import all_words, folded, has_marks
from sbert_search.index.storage.segments import Segment
from sbert_search.text.tokens.chunking import PIECE_CHARS, pieces


class Phrase:
    r"""Consecutive words, in upper or lower case, separated by spaces or punctuation only.

    Args:
        text: A text with at least one word. Unlike the words of the index, its words may have a
            single character or be stop words, and they are not stemmed.
    """

    def __init__(self, text: str) -> None:
        self.text, self.words = text, all_words(folded(text))
        between = r"\W++".join(map(re.escape, self.words))
        self._pattern = re.compile(rf"(?<!\w){between}(?!\w)")

    def occurs_in(self, text: str) -> bool:
        """Whether a text has the phrase; a long text is normalised piece by piece."""
        low = " ".join(map(folded, pieces(text))) if len(text) > PIECE_CHARS else folded(text)
        if not has_marks(low):
            return bool(self._pattern.search(low))
        # For the pattern, a combining mark ends a word. So it would also find a word before a
        # mark, although the mark makes it another word.
        return f" {' '.join(self.words)} " in f" {' '.join(all_words(low))} "


def documents_with(
    phrase: Phrase,
    segment: Segment,
    candidates: NDArray[np.bool_],
    *,
    titles: bool,
    advance: Advance,
) -> NDArray[np.bool_]:
    """Read documents of a segment, a part of the index; return which have a phrase, bool (n_docs,).

    Args:
        phrase: The phrase.
        segment: The segment.
        candidates: The documents to read, bool (n_docs,).
        titles: Whether to look for the phrase in titles too.
        advance: Called with 1 after each document.

    Raises:
        CorruptIndex: A document cannot be read.
    """
    found = candidates.copy()
    at = np.flatnonzero(candidates)
    for doc, (title, text) in zip(at.tolist(), segment.texts_at(segment.firsts[at]), strict=True):
        found[doc] = phrase.occurs_in(text) or (titles and phrase.occurs_in(title))
        advance(1)
    return found
