"""Split texts into words, and words into terms: drop stop words; stem and hash the others.

A term is the 64-bit hash of a stem. Among a million stems, the probability that any two share a
hash, and so count as one term, is 3 in 100 million.

A word is a run of letters, digits and underscores, with the combining marks after them, such as the
vowel signs of Hindi. An apostrophe separates words. But a single letter that it joins to another
word, as in ``it's`` and ``l'eau``, is no word, or "vitamin S" would be found in each text with a
possessive. The letter in "plan B's" is a word; its s is not.

Chinese, Japanese, Thai, Lao, Khmer and Burmese are written without blanks between words. A run of
their letters is indexed as pairs of neighbours, as by Lucene's CJKAnalyzer: 東京都 as 東京, 京都.
In phrases each of these letters is a word. Spellings of Arabic count as one term as by Lucene's
ArabicNormalizationFilter, where the stemmer is not the Arabic one, which sees to them itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from sbert_search.base.cache import typed_lru_cache
from sbert_search.errors import ConfigError
from sbert_search.index.settings import NO_LANGUAGE, UNSTEMMED, LexicalSettings
from sbert_search.text.letters import plain_letters
from sbert_search.text.tokens.chunking import PIECE_CHARS, pieces

MARK = "\u0300"  # stands for every combining mark, since Python's \w matches none

_APOSTROPHE = "['\u2019\uff07]"  # the three of Lucene's EnglishPossessiveFilter

# The patterns of this module are compiled when they are first used, and `re` keeps them: compiling
# these long classes takes a tenth of the time of a search by vectors, which needs none of them.
# Letters of scripts without blanks: Thai, Lao, Burmese, Khmer, kana, Han.
_UNSPACED = (
    r"(?=[^\W\d])[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff"
    r"\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff"
    r"\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
_LETTER = rf"{_UNSPACED}{MARK}*"
_SPACED = rf"(?:(?!{_UNSPACED})[\w{MARK}])"

_RUN = rf"{_LETTER}|\w{_SPACED}*"


def _indexed(more: str) -> str:
    """Make the pattern of an indexed word, given the class of characters after the first one.

    A word of one character is a digit, or a letter that no apostrophe joins to another word.
    """
    alone = rf"(?<!{more}{_APOSTROPHE}.)(?!{_APOSTROPHE}(?!s(?!{more}))[^\W\d_])"
    return rf"\w(?:{more}+|(?<=\d)|(?<=[^\W\d_]){alone})"


_WORD = _indexed(r"\w")  # faster than the other pattern, for texts without marks
_WORD_WITH_MARKS = _indexed(rf"[\w{MARK}]")
_RUN_OR_WORD = rf"(?P<run>(?:{_LETTER})+)|{_indexed(_SPACED)}"


class _Kind(Enum):
    """What matters for the words of a text."""

    MARK = "a combining mark"
    UNSPACED = "a letter of a script without blanks between words"
    OTHER = "any other character"


class _Kinds(dict[str, _Kind]):
    """Maps a character to its kind."""

    def __missing__(self, character: str) -> _Kind:
        if unicodedata.category(character).startswith("M"):
            kind = _Kind.MARK
        else:
            kind = _Kind.UNSPACED if re.match(_LETTER, character) else _Kind.OTHER
        self[character] = kind
        return kind


_KINDS = _Kinds()


def _kinds(text: str) -> set[_Kind]:
    return set() if text.isascii() else set(map(_KINDS.__getitem__, set(text)))


_WIDE = re.compile("[\uff01-\uff9f]+")  # forms of Latin letters, digits and kana of other widths
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉", "0123456789" * 2)  # TiO₂ is TiO2 in other texts


def folded(text: str) -> str:
    """Return a text in the form in which words are compared: NFC and lower case.

    Soft hyphens and zero-width joiners are removed, letters of full and half width get their usual
    one, superscript and subscript digits become digits, and ligatures and Arabic presentation forms
    letters. The Turkish İ becomes i; Python's ``lower`` would return an i with a combining dot.
    """
    if text.isascii():
        return text.lower()
    plain = _WIDE.sub(lambda wide: unicodedata.normalize("NFKC", wide[0]), plain_letters(text))
    low = unicodedata.normalize("NFC", plain).lower().translate(_RAISED)
    return low.replace("i\u0307", "i").replace("\u00ad", "").replace("\u200d", "")


# Hamza and madda on alef, dotless yeh, teh marbuta; tatweel and vowel signs are removed.
_ARABIC = str.maketrans(
    "أإآىة", "اااي\u0647", "\u0640\u064b\u064c\u064d\u064e\u064f\u0650\u0651\u0652"
)


def spelt_alike(text: str) -> str:
    """Replace variants of Arabic letters, and remove vowel signs."""
    return text if text.isascii() else text.translate(_ARABIC)


def is_plain(text: str) -> bool:
    """Whether a text has no combining marks and no script without spaces between words."""
    return _kinds(text) <= {_Kind.OTHER}


def is_unspaced(text: str) -> bool:
    """Whether a text has a letter of a script without blanks between words."""
    return _Kind.UNSPACED in _kinds(text)


def marks_alike(text: str) -> str:
    """Replace each combining mark by `MARK`."""
    if _Kind.MARK not in _kinds(text):
        return text
    return "".join(MARK if _KINDS[character] is _Kind.MARK else character for character in text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the index of the first character of each word, and the index after its last one."""
    return [match.span() for match in re.finditer(_RUN, marks_alike(text))]


def all_words(text: str) -> list[str]:
    """Split a folded text into words, including those of one character."""
    return [text[start:end] for start, end in word_spans(text)]


def indexed_words(text: str) -> list[str]:
    """Split a text into folded words that are indexed, including stop words."""
    text = folded(text)
    if is_plain(text):
        return re.findall(_WORD, text)
    if not is_unspaced(text):
        found = re.finditer(_WORD_WITH_MARKS, marks_alike(text))
        return [text[slice(*match.span())] for match in found]
    words = []
    for match in re.finditer(_RUN_OR_WORD, marks_alike(text)):
        word = text[slice(*match.span())]
        words += letter_pairs(word) if match["run"] else [word]
    return words


def letter_pairs(run: str) -> list[str]:
    """Return the pairs of neighbouring letters, with their marks, or a letter that stands alone."""
    letters = all_words(run)
    return list(map("".join, pairwise(letters))) or letters


def joined_pairs(words: Iterable[str], text: str) -> Iterator[str]:
    """Join pairs of letters that overlap, such as 東京 and 京都, to parts that a text contains."""
    low, part = folded(text), ""
    for word in words:
        shared = all_words(word)[0] if is_unspaced(word) else ""
        longer = part + word.removeprefix(shared)
        if part and shared and part.endswith(shared) and longer in low:
            part = longer
            continue
        if part:
            yield part
        part = word
    if part:
        yield part


STOP_WORD = 0  # stands for every stop word; no term has this hash

NearWords = Callable[[str], Sequence[tuple[str, int]]]
"""Returns the words of the index that are a few edits away from a lower-case word.

Each word comes with its number of edits.
"""

_MAX_WORDS_KNOWN = 1 << 18  # the cache is emptied when it has more words


class TermReader:
    """Turns texts into terms; keeps the term of each word seen."""

    words = staticmethod(indexed_words)

    def __init__(self, settings: LexicalSettings) -> None:
        self._hashes = _WordHashes(settings)

    def hashes(self, words: Sequence[str]) -> NDArray[np.uint64]:
        """Turn words into hashes of their terms, uint64 (n_words,); `STOP_WORD` for stop words."""
        if len(self._hashes) > _MAX_WORDS_KNOWN:
            self._hashes.clear()
        return np.fromiter(map(self._hashes.__getitem__, words), np.uint64, len(words))

    def parts(self, text: str) -> Iterator[list[str]]:
        """Yield the words of a text, piece by piece if it is long."""
        return map(self.words, pieces(text) if len(text) > PIECE_CHARS else (text,))

    def terms(self, text: str, counted: Counter[str] | None = None) -> NDArray[np.uint64]:
        """Return the `hashes` of the words of a text; count the words in ``counted``."""
        found = []
        for words in self.parts(text):
            if counted is not None:
                counted.update(words)
            found.append(self.hashes(words))
        return np.concatenate(found)

    def matched_words(
        self, query: str, text: str, near: NearWords | None = None
    ) -> dict[str, tuple[str, ...]]:
        """Map each word of a query that a text contains, in their order, to what to show for it.

        That is the word itself if the text has its term, then words of the text that have the term
        of a word that ``near`` finds.
        """
        counted: Counter[str] = Counter()
        terms = set(self.terms(text, counted if near else None).tolist()) - {STOP_WORD}
        found: dict[str, tuple[str, ...]] = {}
        for word in dict.fromkeys(self.words(query)):
            term = self._hashes[word]
            shown: tuple[str, ...] = (word,) if term in terms else ()
            if near is not None and term != STOP_WORD:
                others = {self._hashes[other] for other, _ in near(word)} & terms - {term}
                shown += tuple(other for other in counted if self._hashes[other] in others)
            if shown:
                found[word] = shown
        return found


@typed_lru_cache(maxsize=4)
def term_reader(settings: LexicalSettings) -> TermReader:
    """Return the reader for some settings; all callers in this process share it and its cache."""
    return TermReader(settings)


class _WordHashes(dict[str, int]):
    def __init__(self, settings: LexicalSettings) -> None:
        super().__init__()
        self._stop_words = frozenset(settings.stop_words or ())
        self._stem = _stemmer(settings.language)
        self._is_arabic = settings.language == "arabic"

    def __missing__(self, word: str) -> int:
        if word in self._stop_words:
            code = STOP_WORD
        else:
            term = word if self._is_arabic else spelt_alike(word)
            term = self._stem.stemWord(term) if self._stem else term
            code = xxhash.xxh3_64_intdigest(term.encode("utf-8", "surrogatepass")) or 1
        self[word] = code
        return code


def _stemmer(language: str) -> Any | None:
    if language == NO_LANGUAGE or language in UNSTEMMED:
        return None
    import Stemmer

    try:
        return Stemmer.Stemmer(language, 0)  # cache size 0, since _WordHashes is a cache
    except (KeyError, UnicodeError) as error:
        raise ConfigError(
            f"PyStemmer {Stemmer.version()} has no stemmer for {language!r}."
        ) from error
