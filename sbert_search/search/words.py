"""Search by words, and what words say of a hit; no model takes part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sbert_search.index.lexical_terms import TermReader
from sbert_search.index.snapshot import RowMask, Snapshot
from sbert_search.search.ranking import Ranking
from sbert_search.tokens.sentences import split_sentences


def matching_documents(
    snapshot: Snapshot, queries: Sequence[str], k: int, mask: RowMask | None = None
) -> list[Ranking]:
    """Find the k documents whose words score best for each query, by BM25 over whole documents.

    The best passage is not known yet: rows are those of first passages.

    Raises:
        NoLexicalData: The index was made without.
    """
    found = snapshot.lexical.search(queries, k, mask)
    return [Ranking(docs, docs, scores) for docs, scores in found]


def best_passages(snapshot: Snapshot, query: str, ranking: Ranking) -> Ranking:
    """Name the passage with most of the query's words where only words found a document.

    Of passages with equally many it is the first. Documents with one passage are left alone.
    """
    dense, _ = ranking.stages.get("dense", (np.zeros(len(ranking), np.int64), None))
    if snapshot.n_rows == snapshot.n_docs or dense.all():
        return ranking
    rows = ranking.rows.copy()
    for place in np.flatnonzero(dense == 0):
        passages = snapshot.fetch(snapshot.rows_of(ranking.docs[place : place + 1]))
        texts = [p.document.full_text[p.char_start : p.char_end] for p in passages]
        rows[place] = passages[_most_words(snapshot.lexical.reader, query, texts)].row
    return Ranking(ranking.docs, rows, ranking.scores, ranking.stages)


def best_sentence(reader: TermReader, query: str, passage: str) -> str:
    """Pick the sentence with most of the query's words, the first of equals."""
    sentences = split_sentences(passage, wrapped=True) or [""]
    return sentences[_most_words(reader, query, sentences)]


def _most_words(reader: TermReader, query: str, texts: Sequence[str]) -> int:
    return int(np.argmax([len(reader.matched_words(query, text)) for text in texts]))
