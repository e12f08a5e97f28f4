"""Words of the index that are spelt like words of a query, for fuzzy search and for corrections."""

from __future__ import annotations

import unicodedata

from sbert_search.base.cache import typed_lru_cache
from sbert_search.index.lexical.analyzer import STOP_WORD, NearWords, folded, word_spans
from sbert_search.index.lexical.vocabulary import NearWord, is_listed
from sbert_search.index.snapshot import Snapshot

MOST_EDITS = 2
MOST_NEAR = 50  # near words that fuzzy search adds to a word of the query

# A word in at most RARE documents is taken for a misspelling if another word, one edit away, is in
# at least ODDS times as many documents. A correction with two edits is preferred to a correction
# with one edit only if the former occurs more than ODDS times as often as the latter.
RARE = 2
ODDS = 100


def near_words(snapshot: Snapshot, edits: int) -> NearWords:
    """Return a function that finds the words of the index within ``edits`` edits of a given word.

    The function returns the `MOST_NEAR` nearest words. It raises `NoLexicalData` if the index has
    no list of its words.
    """

    @typed_lru_cache(maxsize=1024)
    def near(word: str) -> list[tuple[str, int]]:
        found = snapshot.vocabulary.near(word, edits)
        return [(other.word, other.edits) for other in found[:MOST_NEAR]]

    return near


def suggest(snapshot: Snapshot, query: str) -> str | None:
    """Replace each word of a query that seems misspelt with a similar word of the index.

    A word seems misspelt if no live document contains it in any inflection. It also seems misspelt
    if one or two documents contain it, and at least a hundred times as many contain a word that is
    one edit away. Stop words, words with digits and words of one or two characters are never
    replaced.

    Returns:
        The corrected query, or None if no word seems misspelt or no word of the index is similar.

    Raises:
        NoLexicalData: The index has no lexical data, or no list of its words.
        CorruptIndex: A document cannot be read.
    """
    text = unicodedata.normalize("NFC", query)
    corrected, end = "", 0
    for start, after in word_spans(text):
        corrected += text[end:start] + _corrected(snapshot, text[start:after])
        end = after
    corrected += text[end:]
    return None if corrected == text else corrected


def _corrected(snapshot: Snapshot, word: str) -> str:
    """Return the word of the index that was probably meant, capitalised like ``word``.

    If ``word`` does not seem misspelt, or the index has no similar word, return ``word``.
    """
    low = folded(word)
    known = _frequency(snapshot, low, 0)
    if not is_listed(low) or known is None or known > RARE:
        return word

    def is_likely(near: NearWord) -> bool:
        live = _frequency(snapshot, near.word, near.count) or 0
        return live > 0 if known == 0 else near.edits == 1 and live >= ODDS * known

    likely = filter(is_likely, snapshot.vocabulary.near(low, MOST_EDITS))
    best = max(likely, key=lambda near: near.count / ODDS**near.edits, default=None)
    if best is None:
        return word
    if word.isupper():
        return best.word.upper()
    return best.word[0].upper() + best.word[1:] if word[0].isupper() else best.word


def _frequency(snapshot: Snapshot, word: str, count: int) -> int | None:
    """Return the number of live documents that contain a word in any inflection.

    The index stores no such number for stop words. For a stop word, return ``count``, the number of
    its occurrences in the word list, or None if ``count`` is 0.
    """
    (term,) = snapshot.lexical.reader.hashes([word]).tolist()
    if term == STOP_WORD:
        return count or None
    return snapshot.lexical.postings_of(term)[1]
