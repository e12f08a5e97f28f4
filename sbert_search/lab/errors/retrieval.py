"""The errors of a retrieval run: queries whose relevant documents are ranked low or not found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sbert_search.lab.errors.items import Analysed
from sbert_search.lab.errors.record import ErrorItem, JudgedText, cut
from sbert_search.lab.errors.words import WordReader, coverage
from sbert_search.records import Document, Qrels, Query, Run

SHOWN = 3  # number of relevant documents, and of found documents, to describe for a query
_KEPT = 600  # first characters of a described document that are kept


@dataclass(slots=True)
class _Corpus:
    """Facts about the documents of a corpus, gathered in one pass.

    Attributes:
        size: Number of documents.
        frequency: Number of documents that contain each word of the queries, by hash of the word.
        known: For each relevant or described document, the hashes of the words that it shares with
            any query, and the number of all its words.
        texts: The beginning of each document that is described.
    """

    size: int = 0
    frequency: Counter[int] = field(default_factory=Counter)
    known: dict[str, tuple[frozenset[int], int]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Judged:
    """One query with its judgements and results."""

    query: Query
    terms: frozenset[int]
    grades: Mapping[str, int]
    ranks: Mapping[str, int]  # of the documents found, from 1
    scores: Mapping[str, float]
    value: float

    @property
    def relevant(self) -> list[str]:
        """The relevant documents.

        The documents that the search found come first, in the order of their ranks. The others
        follow, by descending grade.
        """
        named = [doc_id for doc_id, grade in self.grades.items() if grade > 0]
        return sorted(named, key=lambda d: (self.ranks.get(d, math.inf), -self.grades[d]))

    @property
    def first_rank(self) -> float:
        """Rank of the first relevant document; infinity if none was found."""
        return self.ranks.get(self.relevant[0], math.inf)

    @property
    def described(self) -> list[str]:
        """The documents to describe: the first relevant ones and the first found ones."""
        return [*self.relevant[:SHOWN], *list(self.ranks)[:SHOWN]]


def analyze_queries(
    queries: Sequence[Query],
    documents: Iterable[Document],
    qrels: Qrels,
    run: Run,
    values: Mapping[str, float],
    *,
    reader: WordReader,
    worst: int,
) -> Analysed:
    """Find the queries with the lowest metric, and compute the features of all queries.

    Of the corpus, memory holds only the words that relevant documents share with queries, and the
    beginnings of the documents that are described.

    Args:
        queries: The judged queries; each has an entry in ``qrels`` and in ``values``. Queries
            without a relevant document are left out.
        documents: The corpus, read once.
        qrels: Judgements.
        run: Scores of the documents found, by query, in the order of their ranks.
        values: Metric of each query, higher is better.
        reader: Splits texts into words.
        worst: Number of worst queries to describe. Queries with equal metrics are ordered by the
            rank of their first relevant document, the worst rank first.
    """
    judged = [
        _Judged(
            query,
            reader.terms(query.text),
            qrels[query.query_id],
            {doc_id: rank for rank, doc_id in enumerate(run.get(query.query_id, ()), 1)},
            run.get(query.query_id, {}),
            values[query.query_id],
        )
        for query in queries
        if max(qrels[query.query_id].values()) > 0
    ]
    order = sorted(range(len(judged)), key=lambda at: (judged[at].value, -judged[at].first_rank))
    chosen = [judged[at] for at in order[:worst]]
    described = {doc_id for each in chosen for doc_id in each.described}
    corpus = _read_corpus(documents, judged, described, reader)
    return Analysed(
        [each.value for each in judged],
        [_features(each, corpus, reader) for each in judged],
        [_item(each, corpus, reader) for each in chosen],
        len(queries) - len(judged),
    )


def _read_corpus(
    documents: Iterable[Document],
    judged: Sequence[_Judged],
    described: set[str],
    reader: WordReader,
) -> _Corpus:
    wanted = frozenset().union(*(each.terms for each in judged))
    relevant = {doc_id for each in judged for doc_id in each.relevant}
    corpus = _Corpus()
    for document in documents:
        text = document.full_text
        terms = reader.terms(text) & wanted
        corpus.size += 1
        corpus.frequency.update(terms)
        if document.doc_id in relevant or document.doc_id in described:
            corpus.known[document.doc_id] = terms, reader.length(text)
        if document.doc_id in described:
            corpus.texts[document.doc_id] = cut(text, _KEPT)
    return corpus


def _best(judged: _Judged, corpus: _Corpus) -> str | None:
    """Return the relevant document with the most words of the query, or None if all are absent."""
    present = [doc_id for doc_id in judged.relevant if doc_id in corpus.known]
    return max(
        present, key=lambda doc_id: len(judged.terms & corpus.known[doc_id][0]), default=None
    )


def _features(judged: _Judged, corpus: _Corpus, reader: WordReader) -> dict[str, float | None]:
    best = _best(judged, corpus)
    known = corpus.known.get(best) if best is not None else None
    return {
        "words in the query": float(reader.length(judged.query.text)),
        "largest share of its words in a relevant text": coverage(judged.terms, known[0])
        if known
        else None,
        "documents with its rarest word": min(
            (float(corpus.frequency[term]) for term in judged.terms), default=None
        ),
        "words in that relevant text": float(known[1]) if known else None,
        "relevant documents": float(len(judged.relevant)),
    }


def _item(judged: _Judged, corpus: _Corpus, reader: WordReader) -> ErrorItem:
    query, best = judged.query, _best(judged, corpus)
    ranks = [judged.ranks[doc_id] for doc_id in judged.relevant if doc_id in judged.ranks]
    missing = len(judged.relevant) - len(ranks)
    found = [_described(doc_id, judged, corpus, reader) for doc_id in list(judged.ranks)[:SHOWN]]
    first = found[0] if found else None
    return ErrorItem(
        item=query.query_id,
        value=judged.value,
        texts=(query.text,),
        words=(reader.length(query.text),),
        expected=_where(ranks, missing),
        came=f"{first.doc_id}: {cut(first.text, 50)}" if first else "nothing",
        shared=() if best is None else reader.words_among(query.text, corpus.known[best][0]),
        features=_features(judged, corpus, reader),
        relevant=tuple(
            _described(doc_id, judged, corpus, reader) for doc_id in judged.relevant[:SHOWN]
        ),
        found=tuple(found),
    )


def _where(ranks: Sequence[int], missing: int) -> str:
    """Say at which ranks the relevant documents were found."""
    shown = ", ".join(f"{rank:,}" for rank in ranks[:SHOWN])
    more = ", ..." if len(ranks) > SHOWN else ""
    at = [f"at rank {shown}{more}"] if ranks else []
    return "; ".join([*at, *([f"{missing:,} not found"] if missing else [])])


def _described(doc_id: str, judged: _Judged, corpus: _Corpus, reader: WordReader) -> JudgedText:
    text = corpus.texts.get(doc_id)
    terms, words = corpus.known.get(doc_id, (frozenset[int](), 0))
    missing = "(not in the corpus)" if text is None else "(no text)"
    return JudgedText(
        doc_id=doc_id,
        rank=judged.ranks.get(doc_id),
        score=judged.scores.get(doc_id),
        grade=judged.grades.get(doc_id),
        text=text or missing,
        words=words,
        shared=reader.words_among(judged.query.text, terms),
        forms=reader.shared(text or "", judged.query.text),
    )
