"""The words of texts, and those that two texts share.

A word has at least two characters. Words are compared as in lexical search: in lower case and
without inflection. Stop words count for the length of a text and for nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from sbert_search.index.lexical.analyzer import STOP_WORD, TermReader
from sbert_search.index.lexical_settings import LexicalSettings, naming_stop_words


class WordReader:
    """Reads the words of texts in one language.

    Args:
        language: Language of the inflections and the stop words; ``none``: neither.

    Raises:
        ConfigError: The language is unknown.
    """

    def __init__(self, language: str = "english") -> None:
        settings = LexicalSettings(language=language)
        self._terms = TermReader(replace(settings, stop_words=naming_stop_words(settings)))

    def length(self, text: str) -> int:
        """Number of words, including stop words and repetitions."""
        return len(self._terms.words(text))

    def terms(self, text: str) -> frozenset[int]:
        """Hashes of the different words that are not stop words."""
        return frozenset(self._terms.terms(text).tolist()) - {STOP_WORD}

    def words_among(self, text: str, terms: frozenset[int]) -> tuple[str, ...]:
        """Words of a text whose terms are among ``terms``, in the order of the text."""
        words = list(dict.fromkeys(self._terms.words(text)))
        hashes = self._terms.hashes(words).tolist()
        return tuple(word for word, term in zip(words, hashes, strict=True) if term in terms)

    def shared(self, first: str, second: str) -> tuple[str, ...]:
        """Words of the first text that the second has too, in the order of the first."""
        return self.words_among(first, self.terms(second))


def coverage(terms: frozenset[int], other: frozenset[int]) -> float | None:
    """Share of the words in ``terms`` that ``other`` has too; None: ``terms`` is empty."""
    return len(terms & other) / len(terms) if terms else None


def overlap(first: frozenset[int], second: frozenset[int]) -> float | None:
    """Shared words as a share of the words of both texts; None: neither has words."""
    union = first | second
    return len(first & second) / len(union) if union else None
