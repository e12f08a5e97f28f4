"""Lexical search, and the passages and words that match a query; no model is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.lexical.analyzer import NearWords, TermReader, term_reader
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.rows import StoredPassage
from sbert_search.search.ranking import Ranking

COMMON = 0.1  # a word in more than this share of the documents is common
FEW = 10  # a word in at most this number of documents is never common, however small the index


class Matched(NamedTuple):
    """What lexical search found for a query.

    Attributes:
        ranking: The documents, or the passages.
        also: BM25 scores of the documents that were named in the call, float64 (m,).
        most: As for `bm25.WeighedTerms`.
    """

    ranking: Ranking
    also: NDArray[np.float64]
    most: float


def matching_documents(
    snapshot: Snapshot,
    queries: Sequence[str],
    k: int,
    mask: RowMask | None = None,
    near: NearWords | None = None,
    also: Sequence[NDArray[np.int64]] | None = None,
) -> list[Matched]:
    """Find the k documents with the best BM25 score for each query; whole documents are scored.

    If ``near`` is given, the words that it finds for a word of the query match too, with smaller
    weights. ``also`` names documents of each query that are scored too. Lexical search does not
    choose a passage: in the rankings, ``rows`` has the row of each document's first passage.

    Raises:
        NoLexicalData: The index has no lexical data.
    """
    matches = snapshot.match(queries, k, mask, near, also)
    return [
        Matched(Ranking(docs, docs, scores).with_stage("lexical"), others, most)
        for docs, scores, others, most in matches
    ]


def best_passages(
    snapshot: Snapshot,
    query: str,
    ranking: Ranking,
    near: NearWords | None = None,
    *,
    group: bool = True,
) -> Ranking:
    """Set the best passage of documents that only lexical search found.

    The best passage is the first of those with the most words of the query. If ``near`` is given,
    a word that it finds for a word of the query counts like that word. Documents that dense search
    ranked too keep the passage that is nearest to the query. In a search for passages (``group`` is
    False), the ranking is returned unchanged, since its rows are the passages that were found.
    """
    if not group or snapshot.n_rows == snapshot.n_docs:
        return ranking
    unknown = np.zeros(len(ranking), np.int64), np.zeros(len(ranking))
    dense, _ = ranking.stages.get("dense", unknown)
    words, _ = ranking.stages.get("lexical", unknown)
    positions = np.flatnonzero((dense <= 0) & (words != 0))
    found = snapshot.rows_of(ranking.docs[positions])
    if len(found) == len(positions):  # each document has one passage
        return ranking
    rows = ranking.rows.copy()
    passages: dict[int, list[StoredPassage]] = defaultdict(list)
    for passage in snapshot.fetch(found):
        passages[passage.doc_row].append(passage)
    for i, doc in zip(positions.tolist(), ranking.docs[positions].tolist(), strict=True):
        texts = [passage.text for passage in passages[doc]]
        rows[i] = passages[doc][_most_words(snapshot.lexical.reader, query, texts, near)].row
    return Ranking(ranking.docs, rows, ranking.scores, ranking.stages)


def informative_words(
    snapshot: Snapshot, query: str, texts: Sequence[str], near: NearWords | None = None
) -> list[tuple[str, ...]]:
    """Return the words of a query that each text contains, in any inflected form.

    If ``near`` is given, the words that it finds for a word of the query are returned too, if the
    text contains them. Words that many documents of the index contain, such as "what", are returned
    only if no other word matches. Stop words are never returned. If the index has no lexical data,
    no words are returned.
    """
    settings = snapshot.settings.lexical
    if settings is None:
        return [()] * len(texts)
    reader = term_reader(settings)
    found = (reader.matched_words(query, text, near).values() for text in texts)
    matched = [tuple(dict.fromkeys(chain.from_iterable(words))) for words in found]
    common = _common_words(snapshot, reader, list(dict.fromkeys(chain.from_iterable(matched))))
    return [tuple(word for word in words if word not in common) or words for words in matched]


def _common_words(snapshot: Snapshot, reader: TermReader, words: Sequence[str]) -> set[str]:
    limit = max(FEW, COMMON * snapshot.n_docs)
    terms = zip(words, reader.hashes(words).tolist(), strict=True)
    return {word for word, term in terms if snapshot.lexical.postings_of(term)[1] > limit}


def _most_words(
    reader: TermReader, query: str, texts: Sequence[str], near: NearWords | None
) -> int:
    """Return the index of the text with the most words of the query."""
    return int(np.argmax([len(reader.matched_words(query, text, near)) for text in texts]))
