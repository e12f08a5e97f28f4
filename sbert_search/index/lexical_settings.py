"""The settings of lexical search: how texts become terms, and the parameters of BM25."""

from __future__ import annotations

from dataclasses import dataclass

from sbert_search.config import require_types, unknown_name
from sbert_search.errors import ConfigError

NO_LANGUAGE = "none"
UNSTEMMED = ("chinese", "korean")  # bm25s has stop words for them, but there is no stemmer

# Where the lists of bm25s, which has no words of one letter, do not suit an index that has them.
# Stop words that exist only before an apostrophe (l'eau) would hide the C of "vitamine C"; letters
# beside an apostrophe are not indexed anyway. Without the pronoun, each query with "I" would prefer
# the few documents with one.
_NO_STOP_WORDS = {"french": frozenset("cdjlmnst"), "italian": frozenset("cl")}
_MORE_STOP_WORDS = {"english": ("i",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class LexicalSettings:
    """How texts become terms (the stems of words), and the parameters of the BM25 score.

    Attributes:
        language: Language of the stemmer and of the default stop words; ``none``: no stemmer, and
            no stop words by default.
        stop_words: Words that are not indexed. None: the list that the library bm25s has for the
            language (empty if it has none), with "i" for English and without the letters that
            French and Italian elide; the constructor puts that list in place of None.
        title_weight: How many times each word of a title counts; 0: titles are not indexed.
        k1: BM25's saturation of repeated words; larger values let repetitions count more.
        b: BM25's normalisation by document length, from 0 (none) to 1 (full).

    Raises:
        ConfigError: A value has the wrong type or is out of range; or the language is unknown, and
            no stop words are given.
    """

    language: str = "english"
    stop_words: tuple[str, ...] | None = None
    title_weight: int = 2
    k1: float = 1.2
    b: float = 0.75

    def __post_init__(self) -> None:
        require_types(self)  # the manifest stores the values, and reading it checks their types
        if not 0 <= self.title_weight <= 100:
            raise ConfigError(f"title_weight is {self.title_weight}; it must be from 0 to 100.")
        if not (0 <= self.k1 <= 100 and 0 <= self.b <= 1):
            raise ConfigError(
                f"k1 is {self.k1} and b is {self.b}; k1 must be from 0 to 100, b from 0 to 1."
            )
        words = self.stop_words  # the caller may have given a list in place of a tuple
        words = _stop_words(self.language) if words is None else tuple(words)
        object.__setattr__(self, "stop_words", words)

    def require_known_language(self) -> None:
        """Refuse an unknown language, which the constructor accepts if stop words are given.

        It is not called for the settings of an existing index: the version that built the index may
        have known the language, and the index can still be searched by vectors.

        Raises:
            ConfigError: The language is unknown.
        """
        if self.language != NO_LANGUAGE:
            _require_known(self.language)

    @property
    def terms(self) -> tuple[object, ...]:
        """The settings on which postings depend; the others, k1 and b, affect only searches."""
        return self.language, self.stop_words, self.title_weight


def _stop_words(language: str) -> tuple[str, ...]:
    """Return the stop words of a language; an empty tuple if bm25s has no list for it.

    Raises:
        ConfigError: The language is unknown.
    """
    if language == NO_LANGUAGE:
        return ()
    _require_known(language)
    import bm25s.tokenization  # slow, since it imports scipy; an index on disk has its stop words

    unfit = _NO_STOP_WORDS.get(language, ())
    try:
        words = bm25s.tokenization.Tokenizer(stopwords=language).stopwords
    except ValueError:
        words = ()
    return (*(word for word in words if word not in unfit), *_MORE_STOP_WORDS.get(language, ()))


def naming_stop_words(settings: LexicalSettings) -> tuple[str, ...]:
    """Return words that are too frequent to describe a document or a group of documents.

    These are the stop words and, for English, a longer list of bm25s. The English stop words of a
    search lack frequent words such as "he" and "from", since BM25 gives these little weight anyway.
    """
    import bm25s.tokenization

    more = bm25s.tokenization.STOPWORDS_EN_PLUS if settings.language == "english" else ()
    return tuple(dict.fromkeys((*(settings.stop_words or ()), *more)))


def _require_known(language: str) -> None:
    import Stemmer

    known = [NO_LANGUAGE, *UNSTEMMED, *Stemmer.algorithms()]
    if language not in known:
        raise ConfigError(unknown_name(language, language, known, "language"))
