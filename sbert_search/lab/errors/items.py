"""The items of a run: queries of retrieval or pairs of STS, with their errors and words.

Words are compared as in lexical search: in lower case and without inflection. Stop words count in
the length of a text; otherwise they are ignored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sbert_search.evaluate.metrics.correlation import ranks
from sbert_search.index.lexical.analyzer import STOP_WORD, TermReader
from sbert_search.index.settings import LexicalSettings, naming_stop_words
from sbert_search.lab.errors.report import ErrorItem, JudgedText, cut
from sbert_search.records import Document, Qrels, Query, Run
from sbert_search.text.labelled.records import TextPair


@dataclass(frozen=True, slots=True)
class Analysed:
    """The analysed items of a run."""

    values: list[float]  # metric of each item
    features: list[dict[str, float | None]]  # of each item
    worst: list[ErrorItem]  # the worst first
    left_out: int = 0  # number of items that were not analysed


class WordReader:
    """Reads the words of texts in one language; ``none``: no stemmer and no stop words."""

    def __init__(self, language: str = "english") -> None:
        settings = LexicalSettings(language=language)
        self._terms = TermReader(replace(settings, stop_words=naming_stop_words(settings)))

    def length(self, text: str) -> int:
        """Number of words, including stop words and repetitions."""
        return len(self._terms.words(text))

    def terms(self, text: str) -> frozenset[int]:
        """Hashes of the different words that are not stop words."""
        return frozenset(self._terms.terms(text).tolist()) - {STOP_WORD}

    def words_among(self, text: str, terms: frozenset[int]) -> tuple[str, ...]:
        """Words of a text whose hashes are among ``terms``, in the order of the text."""
        words = list(dict.fromkeys(self._terms.words(text)))
        hashes = self._terms.hashes(words).tolist()
        return tuple(word for word, term in zip(words, hashes, strict=True) if term in terms)

    def shared(self, first: str, second: str) -> tuple[str, ...]:
        """Words of the first text that also occur in the second, in the order of the first."""
        return self.words_among(first, self.terms(second))


def coverage(terms: frozenset[int], other: frozenset[int]) -> float | None:
    """Share of the words in ``terms`` that are also in ``other``; None if ``terms`` is empty."""
    return len(terms & other) / len(terms) if terms else None


def overlap(first: frozenset[int], second: frozenset[int]) -> float | None:
    """Number of shared words divided by the number of different words; None if there are none."""
    union = first | second
    return len(first & second) / len(union) if union else None


SHOWN = 3  # number of relevant documents, and of found documents, to describe for a query
_KEPT = 600  # first characters of a described document that are kept


@dataclass(slots=True)
class _Corpus:
    """Facts about the documents of a corpus, gathered in one pass."""

    size: int = 0  # number of documents
    frequency: Counter[int] = field(default_factory=Counter)  # documents by hash of a word
    # For each relevant or described document, the hashes of the words that it shares with any
    # query, and the number of all its words.
    known: dict[str, tuple[frozenset[int], int]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # the beginnings of described ones


@dataclass(frozen=True, slots=True)
class _Judged:
    query: Query
    terms: frozenset[int]
    grades: Mapping[str, int]
    ranks: Mapping[str, int]  # of the documents found, from 1
    scores: Mapping[str, float]
    value: float

    @property
    def relevant(self) -> list[str]:
        """The relevant documents: found ones in the order of their ranks, then others by grade."""
        named = [doc_id for doc_id, grade in self.grades.items() if grade > 0]
        return sorted(named, key=lambda d: (self.ranks.get(d, math.inf), -self.grades[d]))

    @property
    def first_rank(self) -> float:
        """Rank of the first relevant document; infinity if none was found."""
        return self.ranks.get(self.relevant[0], math.inf)

    @property
    def described(self) -> list[str]:
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

    Each query has an entry in ``qrels`` and in ``values``, of which higher is better; ``run`` is in
    the order of ranks. Queries without a relevant document are left out. Of the ``worst`` queries,
    those with equal metrics are ordered by the rank of their first relevant document, the worst
    rank first.

    The corpus is read once. Of it, memory holds only counts of the queries' words, those words of
    relevant and described documents, and the beginnings of the described ones.
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
    found = [_describe(doc_id, judged, corpus, reader) for doc_id in list(judged.ranks)[:SHOWN]]
    first = found[0] if found else None
    return ErrorItem(
        item=query.query_id,
        value=judged.value,
        texts=(query.text,),
        words=(reader.length(query.text),),
        expected=_describe_ranks(ranks, missing),
        came=f"{first.doc_id}: {cut(first.text, 50)}" if first else "nothing",
        shared=() if best is None else reader.words_among(query.text, corpus.known[best][0]),
        features=_features(judged, corpus, reader),
        relevant=tuple(
            _describe(doc_id, judged, corpus, reader) for doc_id in judged.relevant[:SHOWN]
        ),
        found=tuple(found),
    )


def _describe_ranks(ranks: Sequence[int], missing: int) -> str:
    shown = ", ".join(f"{rank:,}" for rank in ranks[:SHOWN])
    more = ", ..." if len(ranks) > SHOWN else ""
    at = [f"at rank {shown}{more}"] if ranks else []
    return "; ".join([*at, *([f"{missing:,} not found"] if missing else [])])


def _describe(doc_id: str, judged: _Judged, corpus: _Corpus, reader: WordReader) -> JudgedText:
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


RANK_ERROR = "rank error"


def analyze_pairs(
    pairs: Sequence[tuple[str, TextPair]],
    predicted: Sequence[float],
    gold: Sequence[float],
    *,
    reader: WordReader,
    worst: int,
) -> Analysed:
    """Find the pairs with the largest rank errors, and compute the features of all pairs.

    The rank error of a pair is the distance between its predicted and its gold rank, divided by the
    number of pairs. Each pair comes with its number in its file, from 0.
    """
    n = len(pairs)
    places = [ranks(scores) for scores in (predicted, gold)]
    errors: list[float] = (np.abs(places[0] - places[1]) / n).tolist()
    terms = [(reader.terms(pair.text1), reader.terms(pair.text2)) for _, pair in pairs]
    lengths = [(reader.length(pair.text1), reader.length(pair.text2)) for _, pair in pairs]
    frequency = Counter(term for both in terms for side in both for term in side)
    features: list[dict[str, float | None]] = [
        {
            "words of both texts": float(sum(words)),
            "difference of the lengths": float(abs(words[0] - words[1])),
            "share of words in common": overlap(*both),
            "texts with the rarest word": min(
                (float(frequency[term]) for term in both[0] | both[1]), default=None
            ),
            "gold score": float(score),
        }
        for both, words, score in zip(terms, lengths, gold, strict=True)
    ]
    order = sorted(range(n), key=lambda at: (-errors[at], at))[:worst]
    items = [
        ErrorItem(
            item=pairs[at][0],
            value=errors[at],
            texts=(pairs[at][1].text1, pairs[at][1].text2),
            words=lengths[at],
            expected=f"gold {gold[at]:.4g}, rank {_format_rank(places[1][at])} of {n:,}",
            came=f"score {predicted[at]:.4f}, rank {_format_rank(places[0][at])} of {n:,}",
            shared=reader.shared(pairs[at][1].text1, pairs[at][1].text2),
            forms=reader.shared(pairs[at][1].text2, pairs[at][1].text1),
            features=features[at],
        )
        for at in order
    ]
    return Analysed(errors, features, items)


def _format_rank(rank: float) -> str:
    """Format a rank, which may be a fraction: equal scores share the mean of their ranks."""
    return f"{rank:,.10g}"
