"""Search by words, and what words say of a hit; no model takes part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.lexical.analyzer import TermReader, term_reader
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.passages import StoredPassage
from sbert_search.search.highlight import CHARS
from sbert_search.search.ranking import Ranking
from sbert_search.tokens.sentences import split_sentences

COMMON = 0.1  # a word in a larger share of the documents says little of any one of them
FEW = 10  # documents that do not make a word common, however small the index


def matching_documents(
    snapshot: Snapshot, queries: Sequence[str], k: int, mask: RowMask | None = None
) -> list[Ranking]:
    """Find the k documents whose words score best for each query, by BM25 over whole documents.

    The best passage is not known yet: rows are those of first passages.

    Raises:
        NoLexicalData: The index was made without.
    """
    found = snapshot.lexical.search(queries, k, mask)
    return [Ranking(docs, docs, scores).with_stage("lexical") for docs, scores in found]


def best_passages(snapshot: Snapshot, query: str, ranking: Ranking) -> Ranking:
    """Name the passage with most of the query's words where only words found a document.

    Of passages with equally many it is the first. Documents with one passage are left alone.
    """
    dense, _ = ranking.stages.get("dense", (np.zeros(len(ranking), np.int64), None))
    if snapshot.n_rows == snapshot.n_docs or dense.all():
        return ranking
    rows, places = ranking.rows.copy(), np.flatnonzero(dense == 0)
    passages: dict[int, list[StoredPassage]] = defaultdict(list)
    for passage in snapshot.fetch(snapshot.rows_of(ranking.docs[places])):
        passages[passage.doc].append(passage)
    for place, doc in zip(places.tolist(), ranking.docs[places].tolist(), strict=True):
        texts = [p.document.full_text[p.char_start : p.char_end] for p in passages[doc]]
        rows[place] = passages[doc][_most_words(snapshot.lexical.reader, query, texts)].row
    return Ranking(ranking.docs, rows, ranking.scores, ranking.stages)


def best_sentence(reader: TermReader, query: str, passage: str) -> str:
    """Pick the sentence with most of the query's words, the first of equals."""
    sentences = split_sentences(passage[:CHARS], wrapped=True) or [""]
    return sentences[_most_words(reader, query, sentences)]


def informative_words(
    snapshot: Snapshot, query: str, texts: Sequence[str]
) -> list[tuple[str, ...]]:
    """Name the words of a query that each text holds, in any form.

    Words that many documents of the index hold, such as "what", are named only where no other
    matched; stop words never, and nothing in an index without lexical data.
    """
    settings = snapshot.settings.lexical
    if settings is None:
        return [()] * len(texts)
    reader = term_reader(settings)
    common = _common_words(snapshot, reader, query)
    matched = (reader.matched_words(query, text) for text in texts)
    return [tuple(word for word in words if word not in common) or words for words in matched]


def _common_words(snapshot: Snapshot, reader: TermReader, query: str) -> set[str]:
    words = list(dict.fromkeys(reader.words(query)))
    limit = max(FEW, COMMON * snapshot.n_docs)
    terms = zip(words, reader.hashes(words).tolist(), strict=True)
    return {word for word, term in terms if snapshot.lexical.postings_of(term)[1] > limit}


def _most_words(reader: TermReader, query: str, texts: Sequence[str]) -> int:
    return int(np.argmax([len(reader.matched_words(query, text)) for text in texts]))
