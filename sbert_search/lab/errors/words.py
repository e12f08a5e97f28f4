"""The words of texts, and those that two texts share.

Words are compared as in lexical search: in lower case and without inflection. Stop words count in
the length of a text; otherwise they are ignored.
"""

from __future__ import annotations

from dataclasses import replace

from sbert_search.index.lexical.analyzer import STOP_WORD, TermReader
from sbert_search.index.settings import LexicalSettings, naming_stop_words


class WordReader:
    """Reads the words of texts in one language.

    Args:
        language: Language of the stemmer and the stop words; ``none``: no stemmer, no stop words.

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
        """Words of a text whose hashes are among ``terms``, in the order of the text."""
        words = list(dict.fromkeys(self._terms.words(text)))
        hashes = self._terms.hashes(words).tolist()
        return tuple(word for word, term in zip(words, hashes, strict=True) if term in terms)

    def shared(self, first: str, second: str) -> tuple[str, ...]:
        """Words of the first text that also occur in the second, in the order of the first."""
        return self.words_among(first, self.terms(second))


def coverage(terms: frozenset[int], other: frozenset[int]) -> float | None:
    """Share of the words in ``terms`` that are also in ``other``; None if ``terms`` is empty."""
    return len(terms & other) / len(terms) if terms else None


def overlap(first: frozenset[int], second: frozenset[int]) -> float | None:
    """Number of shared words divided by the number of different words; None if there are none."""
    union = first | second
    return len(first & second) / len(union) if union else None
