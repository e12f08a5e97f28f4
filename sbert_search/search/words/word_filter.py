"""Find the documents that contain the required words of a query and none of the excluded ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import progress
from sbert_search.errors import NoLexicalData
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.lexical.analyzer import STOP_WORD, NearWords
from sbert_search.index.lexical.phrases import Phrase, documents_with
from sbert_search.index.snapshot import Snapshot
from sbert_search.search.ranking import Ranking
from sbert_search.search.words.operators import Clause

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

    A word without quotes is looked up in the postings by its stem. Quoted words, words of several
    parts such as ``state-of-the-art``, and words that the postings lack, such as stop words, are
    phrases, which must occur exactly. To find a phrase, the texts of the documents that contain all
    its indexed words are read.

    Args:
        snapshot: The state of the index.
        clauses: The words and phrases that documents must, or must not, contain.
        mask: The rows that a filter admits; None: all live rows.
        near: Finds similar words, any of which a document may contain instead of a required word
            without quotes. None: the document must contain the required word.

    Raises:
        NoLexicalData: The index has no lexical data.
        CorruptIndex: A document cannot be read.
    """
    if snapshot.settings.lexical is None:
        raise NoLexicalData(
            f"{snapshot.path} was built without lexical data, which {clauses[0]} in the query "
            f"needs; add it with `sbert-search index lexical {snapshot.path}`, or search for the "
            'text as it is with syntax="plain" (--plain).'
        )
    marks = documents_of(snapshot, mask)
    phrases = []
    for clause in clauses:
        phrase, reader = Phrase(clause.text), snapshot.lexical.reader
        (*others, term) = reader.hashes(phrase.words).tolist()
        if clause.quoted or others or term == STOP_WORD or not reader.words(clause.text):
            phrases.append((clause, phrase))
        else:
            alike = None if clause.excluded else near
            _keep(marks, _with_any(snapshot, phrase.words, alike), clause.excluded)
    for clause, phrase in phrases:  # last: these read only documents that are still marked
        _keep(marks, _with_phrase(snapshot, phrase, marks), clause.excluded)
    return snapshot.mask_of_documents(marks)


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
    """Mark those marked documents that have at least one term of a query, as lexical search does.

    Args:
        snapshot: The state of the index.
        query: The query.
        marks: The marked documents; this list is not changed.
        near: Finds further words that match; None: only terms of the query match.

    Raises:
        NoLexicalData: The index has no lexical data, or ``near`` is given and the index has no list
            of its words.
    """
    words = snapshot.lexical.reader.words(query)
    found = _with_any(snapshot, words, near)
    return [some & here for some, here in zip(found, marks, strict=True)]


def fill_up(snapshot: Snapshot, ranking: Ranking, mask: RowMask, k: int) -> Ranking:
    """Append the documents of a mask that lexical search did not find, up to k documents.

    The appended documents have the score 0 and are in the order of their rows. They contain the
    words and phrases that the query requires, but share no term with the query. An example is the
    query ``"to be or not"``, which consists of stop words.
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
    found = [np.zeros(segment.record.n_docs, bool) for segment in snapshot.segments]
    for term in terms - {STOP_WORD}:
        for marks, more in zip(found, _with_term(snapshot, term), strict=True):
            marks |= more
    return found


def _with_term(snapshot: Snapshot, term: int) -> Marks:
    found = [np.zeros(segment.record.n_docs, bool) for segment in snapshot.segments]
    for marks, pairs in zip(found, snapshot.lexical.postings_of(term)[0], strict=True):
        marks[pairs[:, 0]] = True
    return found


def _with_phrase(snapshot: Snapshot, phrase: Phrase, marks: Marks) -> Marks:
    """Mark those marked documents that contain a phrase.

    Only documents that contain all words of the phrase are read. Stop words are not asked for, nor
    are single letters, which the postings lack beside an apostrophe.
    """
    settings = snapshot.settings.lexical
    assert settings is not None
    candidates = [marks_of_segment.copy() for marks_of_segment in marks]
    reader = snapshot.lexical.reader
    words = [word for word in reader.words(phrase.text) if len(word) > 1 or word.isdecimal()]
    for term in set(reader.hashes(words).tolist()) - {STOP_WORD}:
        _keep(candidates, _with_term(snapshot, term), excluded=False)
    total = sum(int(some.sum()) for some in candidates)
    label = f"Reading for {' '.join(phrase.words)[:40]!r}"
    with progress(label, total, hidden=total < _SLOW) as advance:
        return [
            documents_with(phrase, segment, some, titles=settings.title_weight > 0, advance=advance)
            for segment, some in zip(snapshot.segments, candidates, strict=True)
        ]
