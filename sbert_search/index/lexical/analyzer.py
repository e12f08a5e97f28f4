"""Texts -> terms: words of two characters or more, without stop words, stemmed, as 64-bit hashes.

Two of a million terms share a hash with a probability of 3 in 100 million; they then count as one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from sbert_search.config import unknown_name
from sbert_search.errors import ConfigError
from sbert_search.tokens.chunking import PIECE_CHARS, pieces

WORD = re.compile(r"\w\w+")  # what bm25s and scikit-learn take for a word
NO_LANGUAGE = "none"
STOP_WORD = 0  # stands for the hash of a word that is no term

_UNSTEMMED = ("chinese", "korean")  # languages with stop words and no stemmer
_MAX_WORDS_KNOWN = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class LexicalSettings:
    """What a word is to an index, and how words score.

    Attributes:
        language: Whose stemmer and stop words are used; ``none``: words as they stand.
        stop_words: Words that are no terms; None: those that bm25s has for the language, which the
            index then keeps.
        title_weight: How often each word of a title counts.
        k1: How fast repeated words saturate.
        b: How far the length of a document counts, from 0 to 1.
    """

    language: str = "english"
    stop_words: tuple[str, ...] | None = None
    title_weight: int = 2
    k1: float = 1.2
    b: float = 0.75

    def __post_init__(self) -> None:
        if not 0 <= self.title_weight <= 100:
            raise ConfigError(f"title_weight is {self.title_weight}; it must be from 0 to 100.")
        if not (0 <= self.k1 <= 100 and 0 <= self.b <= 1):
            raise ConfigError(
                f"k1 is {self.k1} and b is {self.b}; k1 must be from 0 to 100, b from 0 to 1."
            )
        if self.stop_words is None:
            object.__setattr__(self, "stop_words", _stop_words(self.language))

    @property
    def terms(self) -> tuple[object, ...]:
        """What decides the postings; the rest only weighs them."""
        return self.language, self.stop_words, self.title_weight


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


def _stop_words(language: str) -> tuple[str, ...]:
    """Return the stop words of a language, none where bm25s has no list of them.

    Raises:
        ConfigError: No such language.
    """
    if language == NO_LANGUAGE:
        return ()
    import bm25s.tokenization  # with scipy, so only where an index is made
    import Stemmer

    known = [NO_LANGUAGE, *_UNSTEMMED, *Stemmer.algorithms()]
    if language not in known:
        raise ConfigError(unknown_name(language, language, known, "language"))
    try:
        return tuple(bm25s.tokenization.Tokenizer(stopwords=language).stopwords)
    except ValueError:
        return ()


def _stemmer(language: str) -> Any | None:
    """Open the stemmer of a language; None where words stay as they are.

    Raises:
        ConfigError: PyStemmer does not know the language.
    """
    if language == NO_LANGUAGE or language in _UNSTEMMED:
        return None
    import Stemmer

    try:
        return Stemmer.Stemmer(language, 0)  # our own table of words is its cache
    except (KeyError, UnicodeError) as error:
        raise ConfigError(
            f"PyStemmer {Stemmer.version()} has no stemmer for {language!r}."
        ) from error
