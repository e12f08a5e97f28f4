"""What a word is to an index, and how words score: the settings of lexical search."""

from __future__ import annotations

from dataclasses import dataclass

from sbert_search.config import unknown_name
from sbert_search.errors import ConfigError

NO_LANGUAGE = "none"


UNSTEMMED = ("chinese", "korean")  # languages with stop words and no stemmer


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


def _stop_words(language: str) -> tuple[str, ...]:
    """Return the stop words of a language, none where bm25s has no list of them.

    Raises:
        ConfigError: No such language.
    """
    if language == NO_LANGUAGE:
        return ()
    import bm25s.tokenization  # with scipy, so only where an index is made
    import Stemmer

    known = [NO_LANGUAGE, *UNSTEMMED, *Stemmer.algorithms()]
    if language not in known:
        raise ConfigError(unknown_name(language, language, known, "language"))
    try:
        return tuple(bm25s.tokenization.Tokenizer(stopwords=language).stopwords)
    except ValueError:
        return ()
