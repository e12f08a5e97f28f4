"""The words of a query: required, excluded, in exact phrases, or misspelt.

Postings (for each term, the documents that contain it) say which documents have the words of a
phrase, but not where. So the texts of these documents are read; positions would make postings two
to three times as large.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.cache import typed_lru_cache
from sbert_search.base.progress import progress
from sbert_search.errors import ModelError, NoLexicalData
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.lexical.analyzer import (
    STOP_WORD,
    NearWords,
    TermReader,
    all_words,
    folded,
    is_plain,
    is_unspaced,
    spelt_alike,
    word_spans,
)
from sbert_search.index.lexical.vocabulary import NearWord, is_listed
from sbert_search.index.settings import all_stop_words
from sbert_search.index.snapshot import Snapshot
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.models.loading.resolve import PACKAGED_NAME
from sbert_search.search.candidates import fields_of
from sbert_search.search.fusion import Ranking
from sbert_search.search.queries import Clause
from sbert_search.text.tokens.chunking import PIECE_CHARS, pieces

if TYPE_CHECKING:
    from sbert_search.search.retrieval import Retrieved
    from sbert_search.text.tokens.tokenizer import TextTokenizer


class Phrase:
    """Consecutive words, in upper or lower case, separated by spaces or punctuation only.

    Unlike the words of the index, they may have a single character or be stop words, and they are
    not stemmed. The text needs at least one word.
    """

    def __init__(self, text: str) -> None:
        self.text, self.words = text, all_words(spelt_alike(folded(text)))
        between = r"\W++".join(map(re.escape, self.words))
        self._pattern = re.compile(rf"(?<!\w){between}(?!\w)")

    def occurs_in(self, text: str) -> bool:
        """Whether a text has the phrase; a long text is normalised piece by piece."""
        low = " ".join(map(folded, pieces(text))) if len(text) > PIECE_CHARS else folded(text)
        low = spelt_alike(low)
        if is_plain(low):
            return bool(self._pattern.search(low))
        # For the pattern, a combining mark ends a word. So it would also find a word before a
        # mark, although the mark makes it another word. And words need no blanks in all scripts.
        return f" {' '.join(self.words)} " in f" {' '.join(all_words(low))} "


MOST_EDITS = 2
MOST_NEAR = 50  # near words that fuzzy search adds to a word of the query

# Shorter words are not corrected, and words of fewer than TWO_EDITS_FROM letters by one edit only.
# Both are the defaults of Algolia.
LEAST_LETTERS = 4
TWO_EDITS_FROM = 8

SHORT_NAME = 5  # letters of a word in capitals that is taken for an abbreviation

# A word in at most RARE documents is taken for a misspelling if another word, one edit away, is in
# at least ODDS times as many documents. A correction with two edits is preferred to a correction
# with one edit only if the former occurs more than ODDS times as often as the latter.
RARE = 2
ODDS = 100


def near_words(snapshot: Snapshot, edits: int) -> NearWords:
    """Return a function that finds the `MOST_NEAR` words of the index nearest to a given word.

    They are within ``edits`` edits. The function raises `NoLexicalData` if the index lists no
    words.
    """

    @typed_lru_cache(maxsize=1024)
    def near(word: str) -> list[tuple[str, int]]:
        found = snapshot.vocabulary.near(word, edits)
        return [(other.word, other.edits) for other in found[:MOST_NEAR]]

    return near


def suggest(snapshot: Snapshot, query: str, fuzzy: int = 0) -> str | None:
    """Replace words of a query that seem misspelt with similar words of the index; None: no change.

    A word seems misspelt if no live document contains it in any inflection. It also seems misspelt
    if one or two documents contain it, and at least a hundred times as many contain a word that is
    one edit away. Never replaced are stop words of any language, words with digits or of fewer than
    `LEAST_LETTERS` characters, abbreviations and names in capitals such as mRNA, and words that the
    model of the index, or without a model the default model, has as one token: it has seen them
    often, so they are words that the documents lack. Nor is a word replaced by one that it
    begins or that begins it, which is an inflection or a compound. But if another word is replaced,
    such a word becomes the form of its stem that the index has, or a word one edit away.

    If a word that no document contains cannot be corrected, nothing is suggested. Nor is anything
    if a search with ``fuzzy`` edits finds all corrections by itself.
    """
    text = unicodedata.normalize("NFC", query)
    spans = list(word_spans(text))
    words = [text[start:end] for start, end in spans]
    corrected = [_corrected(snapshot, word) for word in words]
    found = near_words(snapshot, fuzzy)
    if all(
        other in (word, None) or folded(other) in dict(found(folded(word)))
        for word, other in zip(words, corrected, strict=True)
    ):
        return None
    parts, after = "", 0
    for (start, end), word, other in zip(spans, words, corrected, strict=True):
        if other in (word, None):
            other = _in_listed_form(snapshot, word, is_known=other is not None)
        if other is None:
            return None
        parts += text[after:start] + other
        after = end
    return parts + text[after:]


def _is_fixed(word: str) -> bool:
    """Whether a word is never replaced."""
    low = folded(word)
    is_name = len(word) <= SHORT_NAME if word.isupper() else word[1:] != word[1:].lower()
    return is_name or not is_listed(low) or len(low) < LEAST_LETTERS or low in all_stop_words()


def _corrected(snapshot: Snapshot, word: str) -> str | None:
    """Return the word of the index that was probably meant, capitalised alike, or ``word``.

    None: no document contains ``word``, and none a word that could be meant.
    """
    low = folded(word)
    known = _frequency(snapshot, low, 0)
    if _is_fixed(word) or known is None or known > RARE:
        return word

    def is_likely(near: NearWord) -> bool:
        if near.word.startswith(low) or low.startswith(near.word):
            return False
        live = _frequency(snapshot, near.word, near.count) or 0
        return live > 0 if known == 0 else near.edits == 1 and live >= ODDS * known

    edits = MOST_EDITS if len(low) >= TWO_EDITS_FROM else 1
    likely = filter(is_likely, snapshot.vocabulary.near(low, edits))
    best = max(likely, key=lambda near: near.count / ODDS**near.edits, default=None)
    if known and best is None:
        return word
    if _is_token(snapshot, low):
        return word
    return None if best is None else _capitalised_like(word, best.word)


def _in_listed_form(snapshot: Snapshot, word: str, *, is_known: bool) -> str | None:
    """Return a word of the index near a word that it lacks.

    If documents have the word's stem (``is_known``), the other has it, too, or ``word`` is
    returned; otherwise a live document has the other, or None is returned.
    """
    low, stems = folded(word), snapshot.lexical.reader.hashes
    if _is_fixed(word) or snapshot.vocabulary.has(low) or _is_token(snapshot, low):
        return word
    found: str | None
    if is_known:
        # "machin" is the stem of "machines", which is two edits away.
        forms = (
            near.word
            for near in snapshot.vocabulary.near(low, MOST_EDITS)
            if near.edits == 1 or near.word.startswith(low)
        )
        found = next((other for other in forms if stems([other]) == stems([low])), word)
    else:
        near = (other.word for other in snapshot.vocabulary.near(low, 1))
        found = next((other for other in near if _frequency(snapshot, other, 0)), None)
    return None if found is None else _capitalised_like(word, found)


def _capitalised_like(word: str, other: str) -> str:
    if word.isupper():
        return other.upper()
    return other[0].upper() + other[1:] if word[0].isupper() else other


def _is_token(snapshot: Snapshot, word: str) -> bool:
    """Whether a tokenizer does not split a lower-case word: that of the index, or the default.

    The default is that of the packaged model, which knows 30,000 words of English.
    """
    identity = ModelIdentity.from_mapping(snapshot.settings.identity)
    has_own = identity.is_model and identity.engine != "hashing"
    names = [identity.name, PACKAGED_NAME] if has_own else [PACKAGED_NAME]
    tokenizer = next(filter(None, map(_tokenizer_of, names)), None)
    if tokenizer is None:
        return False
    forms = [blank + form for form in (word, word.capitalize()) for blank in ("", " ")]
    tokens = [ids for ids, _ in tokenizer.encode_offsets(forms) if len(ids) == 1]
    return any(tokenizer.backend.id_to_token(token) not in _UNKNOWN for (token,) in tokens)


_UNKNOWN = ("[UNK]", "<unk>")  # for words with letters that the tokenizer lacks


@typed_lru_cache(maxsize=2)
def _tokenizer_of(model: str) -> TextTokenizer | None:
    """Open the tokenizer of a model that is on this machine."""
    from sbert_search.models.loading.folder import load_tokenizer, read_folder
    from sbert_search.models.loading.resolve import resolve_model

    try:
        return load_tokenizer(read_folder(resolve_model(model, download=False).path))
    except ModelError:
        return None


def _frequency(snapshot: Snapshot, word: str, count: int) -> int | None:
    """Return the number of live documents that contain a word in any inflection.

    The index has none for stop words: theirs is ``count``, that of the word list, or None if it is
    0.
    """
    (term,) = snapshot.lexical.reader.hashes([word]).tolist()
    if term == STOP_WORD:
        return count or None
    return snapshot.lexical.frequency_of(term)


_SLOW = 20_000  # minimum number of documents whose reading shows a progress bar

Marks = list[NDArray[np.bool_]]
"""For each segment, which of its documents are marked, bool (n_docs,)."""


def word_mask(
    snapshot: Snapshot,
    clauses: Sequence[Clause],
    mask: RowMask | None,
    near: NearWords | None = None,
) -> RowMask:
    """Find the live rows whose documents meet all clauses of a query.

    A word without quotes is looked up in the postings by its stem; if it is required, a word that
    ``near`` finds will do. Quoted words, words of several parts such as ``state-of-the-art``, and
    words that the postings lack, such as stop words, are phrases, which must occur exactly: the
    texts of the documents that contain all indexed words of a phrase are read.
    """
    if snapshot.manifest.lexical is None:
        raise NoLexicalData(
            f"{snapshot.path} was built without lexical data, which {clauses[0]} in the query "
            f"needs; add it with `sbert-search index lexical {snapshot.path}`, or search for the "
            'text as it is with syntax="plain" (--plain).'
        )
    marks = documents_of(snapshot, mask)
    phrases = []
    for clause in clauses:
        phrase, reader = Phrase(clause.text), snapshot.lexical.reader
        if _is_phrase(clause, phrase.words, reader):
            phrases.append((clause, phrase))
        else:
            alike = None if clause.excluded else near
            _keep(marks, _with_any(snapshot, phrase.words, alike), clause.excluded)
    for clause, phrase in phrases:  # last: these read only documents that are still marked
        _keep(marks, _with_phrase(snapshot, phrase, marks), clause.excluded)
    return snapshot.mask_of_documents(marks)


def _is_phrase(clause: Clause, words: Sequence[str], reader: TermReader) -> bool:
    (*others, term) = reader.hashes(words).tolist()
    if clause.quoted or others or is_unspaced(clause.text):
        return True
    return term == STOP_WORD or not reader.words(clause.text)


def with_required_words(snapshot: Snapshot, found: Retrieved, ranking: Ranking) -> Ranking:
    """Set the passage of each document to the best of those with the most of the required words.

    The best is the nearest to the query or, without a vector, the first with the most words of the
    query. All passages of a document have the words of its title, which a hit shows. Ranks and
    scores stay.
    """
    rows, reader = snapshot.rows_of(ranking.docs), snapshot.lexical.reader
    if len(rows) == len(ranking):  # each document has one passage
        return ranking
    settings = snapshot.manifest.lexical
    assert settings is not None
    tests = [_test_of(clause, reader, found.near) for clause in found.required]
    passages = snapshot.fetch(rows)
    if found.vector is not None:
        scores = snapshot.scores_of(found.vector[None], rows).tolist()
    else:
        texts = (" ".join(fields_of(passage)) for passage in passages)
        scores = [len(reader.matched_words(found.query, text, found.near)) for text in texts]
    # For each passage of a document: how many clauses it meets, its score, and minus its row.
    keys: dict[int, list[tuple[int, float, int]]] = defaultdict(list)
    for passage, score in zip(passages, scores, strict=True):
        title = passage.document.title if settings.title_weight > 0 else ""
        n = sum(test(title) or test(fields_of(passage)[1]) for test in tests)
        keys[passage.doc_row].append((n, score, -passage.row))
    best = np.array([-max(keys[doc])[-1] for doc in ranking.docs.tolist()])
    return replace(ranking, rows=best)


def _test_of(clause: Clause, reader: TermReader, near: NearWords | None) -> Callable[[str], bool]:
    """Return what tells whether a text meets a clause, as `word_mask` tells it of documents."""
    phrase = Phrase(clause.text)
    if _is_phrase(clause, phrase.words, reader):
        return phrase.occurs_in
    return lambda text: bool(reader.matched_words(clause.text, text, near))


def documents_of(snapshot: Snapshot, mask: RowMask | None) -> Marks:
    """Mark the live documents whose rows a mask admits; None: all live documents."""
    if mask is not None:
        parts = zip(snapshot.segments, mask.parts, strict=True)
        return [part[segment.firsts] for segment, part in parts]
    live = [snapshot.live_docs(i) for i in range(len(snapshot.segments))]
    return [
        np.ones(segment.record.n_docs, bool) if marks is None else marks.copy()
        for segment, marks in zip(snapshot.segments, live, strict=True)
    ]


def documents_with_any(
    snapshot: Snapshot, query: str, marks: Marks, near: NearWords | None = None
) -> Marks:
    """Mark those marked documents that have a word of a query, or one that ``near`` finds."""
    words = snapshot.lexical.reader.words(query)
    found = _with_any(snapshot, words, near)
    return [some & here for some, here in zip(found, marks, strict=True)]


def fill_up(snapshot: Snapshot, ranking: Ranking, mask: RowMask, k: int) -> Ranking:
    """Append the documents of a mask that lexical search did not find, by row, up to k documents.

    They have the score 0: they contain the words that the query requires, but share no term with
    it. An example is the query ``"to be or not"``, which consists of stop words.
    """
    if len(ranking) >= min(k, mask.n_docs):
        return ranking
    parts = zip(snapshot.segments, mask.parts, strict=True)
    every = [segment.rows[segment.firsts[part[segment.firsts]]] for segment, part in parts]
    rest = np.setdiff1d(np.concatenate([np.empty(0, np.int64), *every]), ranking.docs)
    docs = np.concatenate([ranking.docs, rest[: k - len(ranking)]])
    scores = np.zeros(len(docs))
    scores[: len(ranking)] = ranking.scores
    return Ranking(docs, docs, scores).with_stage("lexical")


def _keep(marks: Marks, found: Marks, excluded: bool) -> None:
    """Unmark the documents that were not found or, if ``excluded``, those that were found."""
    for kept, here in zip(marks, found, strict=True):
        kept &= ~here if excluded else here


def _with_any(snapshot: Snapshot, words: Sequence[str], near: NearWords | None) -> Marks:
    """Mark the documents that contain at least one of the words, or a word that ``near`` finds."""
    hashes = snapshot.lexical.reader.hashes
    terms = set(hashes(words).tolist())
    for word in words if near else ():
        assert near is not None
        if STOP_WORD not in hashes([word]):
            terms |= set(hashes([other for other, _ in near(word)]).tolist())
    return _with_terms(snapshot, terms - {STOP_WORD})


def _with_terms(snapshot: Snapshot, terms: Iterable[int]) -> Marks:
    """Mark the documents that contain at least one of the terms."""
    found = [np.zeros(segment.record.n_docs, bool) for segment in snapshot.segments]
    for term in terms:
        for marks, docs in zip(found, snapshot.lexical.documents_of(term), strict=True):
            marks[docs] = True
    return found


def _with_phrase(snapshot: Snapshot, phrase: Phrase, marks: Marks) -> Marks:
    """Mark those marked documents that contain a phrase; only those with all its words are read."""
    settings = snapshot.manifest.lexical
    assert settings is not None
    candidates = [marks_of_segment.copy() for marks_of_segment in marks]
    reader = snapshot.lexical.reader
    # The postings lack stop words and, beside an apostrophe or another letter of a script without
    # blanks, single letters.
    words = [
        word
        for word in reader.words(phrase.text)
        if (len(all_words(word)) > 1 if is_unspaced(word) else len(word) > 1 or word.isdecimal())
    ]
    for term in set(reader.hashes(words).tolist()) - {STOP_WORD}:
        _keep(candidates, _with_terms(snapshot, [term]), excluded=False)
    total = sum(int(some.sum()) for some in candidates)
    label = f"Reading for {' '.join(phrase.words)[:40]!r}"
    with progress(label, total, hidden=total < _SLOW) as advance:
        for segment, found in zip(snapshot.segments, candidates, strict=True):
            at = np.flatnonzero(found)
            texts = segment.texts_at(segment.firsts[at])
            for doc, (title, text) in zip(at.tolist(), texts, strict=True):
                in_title = settings.title_weight > 0 and phrase.occurs_in(title)
                found[doc] = in_title or phrase.occurs_in(text)
                advance(1)
    return candidates
