"""The settings of lexical search: how texts become terms, and the parameters of BM25."""

from __future__ import annotations

from dataclasses import dataclass

from sbert_search.config import require_types, unknown_name
from sbert_search.errors import ConfigError

NO_LANGUAGE = "none"
UNSTEMMED = ("chinese", "korean")  # languages with stop words but no stemmer


@dataclass(frozen=True, kw_only=True, slots=True)
class LexicalSettings:
    """How texts become terms, and the parameters of BM25.

    Attributes:
        language: Language of the stemmer and the stop words; ``none``: neither.
        stop_words: Words that are not indexed; None: the list of bm25s for the language, which
            the index then stores.
        title_weight: How many times each word of a title counts.
        k1: BM25's saturation of repeated words; larger values let repetitions count more.
        b: BM25's normalisation by document length, from 0 (none) to 1 (full).
        combining_marks: Whether combining marks, such as the vowel signs of Hindi, belong to words.
            Indexes of version 0.1 have False. The command `index lexical` computes the postings
            again and sets True.

    Raises:
        ConfigError: A value has another type or is out of range, or the language is unknown.
    """

    language: str = "english"
    stop_words: tuple[str, ...] | None = None
    title_weight: int = 2
    k1: float = 1.2
    b: float = 0.75
    combining_marks: bool = True

    def __post_init__(self) -> None:
        require_types(self)  # the manifest stores the values, and reading it checks their types
        if not 0 <= self.title_weight <= 100:
            raise ConfigError(f"title_weight is {self.title_weight}; it must be from 0 to 100.")
        if not (0 <= self.k1 <= 100 and 0 <= self.b <= 1):
            raise ConfigError(
                f"k1 is {self.k1} and b is {self.b}; k1 must be from 0 to 100, b from 0 to 1."
            )
        words = self.stop_words  # a list, if the caller gives one
        words = _stop_words(self.language) if words is None else tuple(words)
        object.__setattr__(self, "stop_words", words)

    def require_known_language(self) -> None:
        """Refuse an unknown language, which the constructor accepts if stop words are given.

        The settings of an existing index are not checked: another version may have known their
        language, and the index can still be searched by vectors.

        Raises:
            ConfigError: The language is unknown.
        """
        if self.language != NO_LANGUAGE:
            _require_known(self.language)

    @property
    def terms(self) -> tuple[object, ...]:
        """The settings on which postings depend; only searches use the others."""
        return self.language, self.stop_words, self.title_weight, self.combining_marks


def _stop_words(language: str) -> tuple[str, ...]:
    """Return the stop words of a language; none where bm25s has no list.

    Raises:
        ConfigError: The language is unknown.
    """
    if language == NO_LANGUAGE:
        return ()
    import bm25s.tokenization  # imports scipy, so it is loaded only when an index is created

    _require_known(language)
    try:
        return tuple(bm25s.tokenization.Tokenizer(stopwords=language).stopwords)
    except ValueError:
        return ()


def naming_stop_words(settings: LexicalSettings) -> tuple[str, ...]:
    """Return words that must not describe a cluster: the stop words, and for English a longer list.

    The English stop words of a search are few; "he" and "from" are not among them. In a search BM25
    gives such frequent words little weight.
    """
    import bm25s.tokenization

    more = bm25s.tokenization.STOPWORDS_EN_PLUS if settings.language == "english" else ()
    return tuple(dict.fromkeys((*(settings.stop_words or ()), *more)))


def _require_known(language: str) -> None:
    import Stemmer

    known = [NO_LANGUAGE, *UNSTEMMED, *Stemmer.algorithms()]
    if language not in known:
        raise ConfigError(unknown_name(language, language, known, "language"))
