"""Texts -> terms: words of two characters or more, without stop words, stemmed, as 64-bit hashes.

Two of a million terms share a hash with a probability of 3 in 100 million; they then count as one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from sbert_search.errors import ConfigError
from sbert_search.index.lexical_settings import NO_LANGUAGE, UNSTEMMED, LexicalSettings
from sbert_search.tokens.chunking import PIECE_CHARS, pieces

WORD = re.compile(r"\w\w+")  # what bm25s and scikit-learn take for a word
STOP_WORD = 0  # stands for the hash of a word that is no term

_MAX_WORDS_KNOWN = 1 << 18


class TermReader:
    """Reads terms, and remembers the words that it has met.

    Raises:
        ConfigError: There is no stemmer for the language.
    """

    def __init__(self, settings: LexicalSettings) -> None:
        self._hashes = _WordHashes(settings)

    def words(self, text: str) -> list[str]:
        """Split a text into words in lower case, stop words included."""
        return WORD.findall(unicodedata.normalize("NFC", text).lower())

    def hashes(self, words: Sequence[str]) -> NDArray[np.uint64]:
        """Turn words into hashes of their terms, uint64 (n_words,); `STOP_WORD` for stop words."""
        if len(self._hashes) > _MAX_WORDS_KNOWN:
            self._hashes.clear()
        return np.fromiter(map(self._hashes.__getitem__, words), np.uint64, len(words))

    def terms(self, text: str) -> NDArray[np.uint64]:
        """Read the terms of a text of any length, as `hashes` of its `words`."""
        if len(text) <= PIECE_CHARS:
            return self.hashes(self.words(text))
        return np.concatenate([self.hashes(self.words(piece)) for piece in pieces(text)])

    def matched_words(self, query: str, text: str) -> tuple[str, ...]:
        """Name the words of a query whose terms a text holds, in the order of the query."""
        asked = dict.fromkeys(self.words(query))
        there = set(np.unique(self.terms(text)).tolist()) - {STOP_WORD}
        return tuple(word for word in asked if self._hashes[word] in there)


@lru_cache(maxsize=4)
def term_reader(settings: LexicalSettings) -> TermReader:
    """Return the reader of some settings, with the words that it has met in this process."""
    return TermReader(settings)


class _WordHashes(dict[str, int]):
    """From words to the hashes of their terms."""

    def __init__(self, settings: LexicalSettings) -> None:
        super().__init__()
        self._stop_words = frozenset(settings.stop_words or ())
        self._stem = _stemmer(settings.language)

    def __missing__(self, word: str) -> int:
        if word in self._stop_words:
            code = STOP_WORD
        else:
            term = self._stem.stemWord(word) if self._stem else word
            code = xxhash.xxh3_64_intdigest(term.encode("utf-8", "surrogatepass")) or 1
        self[word] = code
        return code


def _stemmer(language: str) -> Any | None:
    """Open the stemmer of a language; None where words stay as they are.

    Raises:
        ConfigError: PyStemmer does not know the language.
    """
    if language == NO_LANGUAGE or language in UNSTEMMED:
        return None
    import Stemmer

    try:
        return Stemmer.Stemmer(language, 0)  # our own table of words is its cache
    except (KeyError, UnicodeError) as error:
        raise ConfigError(
            f"PyStemmer {Stemmer.version()} has no stemmer for {language!r}."
        ) from error
