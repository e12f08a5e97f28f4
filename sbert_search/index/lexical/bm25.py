"""BM25 over the live documents of an index, which are neither deleted nor replaced.

Document frequencies, the number of documents and their average length are counted over live
documents only, so a ranking after updates equals the ranking of a newly built index
(docs/decisions.md: Counts are of live documents, at search time). A document's row is the row of
its first passage, its number in the index.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.lexical.analyzer import STOP_WORD, NearWords, term_reader
from sbert_search.index.lexical.postings import Live, Postings, count_terms
from sbert_search.index.settings import LexicalSettings

if TYPE_CHECKING:
    from sbert_search.index.dense.query_plan import RowMask


class WeighedTerms(NamedTuple):
    """The terms of a query.

    A word of the query counts once in ``most``, by its term or by the near term with the largest
    weight, so a document with several spellings of one word can exceed it.
    """

    # by hash of a term or near term: the most that it can add to a score
    weights: Mapping[int, float]
    most: float  # upper limit of a document's score


class Matches(NamedTuple):
    """The documents found for a query, the best first, and scores of some further ones."""

    docs: NDArray[np.int64]  # row of each document, int64 (n,); among equal scores, the lower first
    scores: NDArray[np.float64]  # float64 (n,)
    # scores of the documents named in the call, float64 (m,); 0: no term matches
    also: NDArray[np.float64]
    most: float  # as for `WeighedTerms`


TermPairs = Sequence[range]
"""Indices in ``Postings.pairs``: of each term in one segment, or of one term in each segment."""


_NO_DOCS = np.empty(0, np.int64)
# Numbers of pairs, chosen by trials on 150,000 documents like those of benchmarks/bench_bm25.py.
PRUNED_FROM = 3 << 14  # fewer are scored in less time than it takes to choose among them
SAMPLED_UP_TO = 1 << 13  # of the rarest term; with more, choosing hardly pays
LONG_FROM = 1 << 12  # of a term that is kept as a `LongTerm`
BLOCK = 16  # a power of two

FEW = 32  # documents of a segment for each pair: with more, no array of all documents is made
SAMPLE = 64  # documents that are scored first
_ROUNDED = 1 - 1e-9  # sums of the same gains in another order differ by less


class LongTerm(NamedTuple):
    """What a search keeps of a term with many pairs in a segment."""

    most: float  # that the term adds to a score if its weight is 1
    firsts: NDArray[np.uint32]  # the first of each block of pairs


class LexicalPart(NamedTuple):
    """The documents of one segment."""

    postings: Postings
    firsts: NDArray[np.int64]  # position in the segment of each first passage, int64 (n_docs,)
    rows: NDArray[np.int64]  # row of each document, int64 (n_docs,)
    live: Live

    def frequency(self, span: range) -> int:
        """Count the live documents among the pairs of a term."""
        return len(span) if self.live is None else int(self.live[self.postings.docs(span)].sum())


class LexicalSearch:
    """Finds the documents with the best BM25 scores for a query.

    ``average`` is the average length of the live documents of an index of which the parts are only
    some segments; None: that of the parts.

    Source: Robertson & Zaragoza 2009, The Probabilistic Relevance Framework: BM25 and Beyond,
    section 3. The inverse document frequency is Lucene's ``ln(1 + (N - df + 0.5) / (df + 0.5))``,
    where df of N documents contain the term.
    """

    def __init__(
        self,
        parts: Sequence[LexicalPart],
        settings: LexicalSettings,
        average: float | None = None,
    ) -> None:
        self.reader = term_reader(settings)
        self._parts = parts
        sources = [(part.postings, part.live) for part in parts]
        lengths = [p.lengths if live is None else p.lengths[live] for p, live in sources]
        self._n_docs = sum(map(len, lengths))
        total = sum(int(each.sum(dtype=np.int64)) for each in lengths)
        counted = total / self._n_docs if total else 1.0
        self.average = counted if average is None else average
        self._settings = settings

    def search(
        self,
        queries: Sequence[str],
        k: int,
        mask: RowMask | None = None,
        near: NearWords | None = None,
        also: Sequence[NDArray[np.int64]] | None = None,
    ) -> list[Matches]:
        """Find the k best documents of each query among those with at least one of its terms.

        ``mask`` must be of the same state of the index as the parts. ``near`` finds words that
        match with smaller weights. ``also`` names, for each query, documents (rows) that are scored
        too.
        """
        live, found = self._live(mask), []
        for query, others in zip(queries, also or [_NO_DOCS] * len(queries), strict=True):
            terms, pairs_of = self._terms(query, near)
            by_segment = zip(*(pairs_of[term] for term in terms.weights), strict=True)
            found.append(self._best(terms, by_segment, live, k, others))
        return found

    def weights(self, query: str, near: NearWords | None = None) -> WeighedTerms:
        """Weigh the terms of a query, and the near terms, that live documents contain."""
        return self._terms(query, near)[0]

    def best(
        self,
        terms: Sequence[WeighedTerms],
        k: int,
        mask: RowMask | None = None,
        also: Sequence[NDArray[np.int64]] | None = None,
    ) -> list[Matches]:
        """Find the k best documents with given `weights`, which may come from a larger index."""
        live, found = self._live(mask), []
        for each, others in zip(terms, also or [_NO_DOCS] * len(terms), strict=True):
            pairs = [part.postings.of(each.weights) for part in self._parts]
            found.append(self._best(each, pairs if each.weights else [], live, k, others))
        return found

    def documents_of(self, term: int) -> list[NDArray[np.uint32]]:
        """Return the documents of each segment with a term, dead ones included, uint32 (n,)."""
        spans = self._pairs_of([term])[term]
        return [part.postings.docs(span) for part, span in zip(self._parts, spans, strict=True)]

    def frequency_of(self, term: int) -> int:
        """Return the number of live documents with a term."""
        return self._frequency(self._pairs_of([term])[term])

    def scores_of(
        self, query: str, texts: Iterable[tuple[str, str]], near: NearWords | None = None
    ) -> NDArray[np.float64]:
        """Score titles and texts as if they were documents of the index, with its counts, (n,)."""
        postings = count_terms(texts, self._settings)
        weights = self.weights(query, near).weights
        if not weights:
            return np.zeros(len(postings.lengths))
        norms = self._norms_of(postings.lengths)
        return _scores(list(weights.values()), postings, postings.of(weights), norms)

    @cached_property
    def _norms(self) -> list[NDArray[np.float64]]:
        return [self._norms_of(part.postings.lengths) for part in self._parts]

    @cached_property
    def _long(self) -> list[dict[int, LongTerm]]:
        return [{} for _ in self._parts]

    def _live(self, mask: RowMask | None) -> list[Live]:
        """Return which documents of each segment may be found."""
        if mask is None:
            return [part.live for part in self._parts]
        return [rows[part.firsts] for rows, part in zip(mask.parts, self._parts, strict=True)]

    def _norms_of(self, lengths: NDArray[np.uint32]) -> NDArray[np.float64]:
        k1, b = self._settings.k1, self._settings.b
        return np.asarray(k1 * (1 - b + b * lengths / self.average), np.float64)

    def _terms(
        self, query: str, near: NearWords | None
    ) -> tuple[WeighedTerms, dict[int, TermPairs]]:
        words = self.reader.words(query)
        weights: dict[int, float] = {}
        counts = Counter(self.reader.hashes(words).tolist())
        pairs_of = self._pairs_of(counts)
        for term, repeats in counts.items():
            if frequency := self._frequency(pairs_of[term]):
                weights[term] = repeats * self._idf(frequency)
        most = sum(weights.values())
        if near is not None:
            known = set(weights)
            for word, repeats in Counter(words).items():
                alike = self._near_terms(word, near)
                for term, weight in alike.items():
                    weights[term] = weights.get(term, 0.0) + repeats * weight
                if known.isdisjoint(self.reader.hashes([word]).tolist()):
                    most += repeats * max(alike.values(), default=0.0)
            pairs_of = self._pairs_of(weights)
        return WeighedTerms(weights, most), pairs_of

    def _pairs_of(self, terms: Iterable[int]) -> dict[int, TermPairs]:
        terms = list(terms)
        by_segment = [part.postings.of(terms) for part in self._parts]
        return {term: [pairs[at] for pairs in by_segment] for at, term in enumerate(terms)}

    def _frequency(self, pairs: TermPairs) -> int:
        return sum(map(LexicalPart.frequency, self._parts, pairs))

    def _near_terms(self, word: str, near: NearWords) -> dict[int, float]:
        """Weigh the terms of the words near a word of a query, except the term of the word itself.

        The weight is the near term's IDF, times the share of the characters of ``word`` that are
        not edited. A rare misspelling must not count more than the intended word, so the IDF is
        limited to that of the query's own term or, if no live document has it, of the most frequent
        near term.
        """
        (own,) = self.reader.hashes([word]).tolist()
        if own == STOP_WORD:
            return {}
        others = near(word)
        hashes = self.reader.hashes([other for other, _ in others]).tolist()
        alike: dict[int, float] = {}
        for term, (_, edits) in zip(hashes, others, strict=True):
            if term not in (STOP_WORD, own):
                alike[term] = max(alike.get(term, 0.0), 1 - edits / len(word))
        pairs_of = self._pairs_of((own, *alike))
        known = {term: n for term, pairs in pairs_of.items() if (n := self._frequency(pairs))}
        idfs = {term: self._idf(frequency) for term, frequency in known.items()}
        limit = idfs.pop(own, None) or min(idfs.values(), default=0.0)
        return {term: alike[term] * min(idf, limit) for term, idf in idfs.items()}

    def _idf(self, frequency: int) -> float:
        return math.log(1 + (self._n_docs - frequency + 0.5) / (frequency + 0.5))

    def _best(
        self,
        terms: WeighedTerms,
        by_segment: Iterable[TermPairs],
        live: list[Live],
        k: int,
        also: NDArray[np.int64],
    ) -> Matches:
        rows, scores, others = [np.empty(0, np.int64)], [np.empty(0)], np.zeros(len(also))
        floor = math.ulp(0.0)  # the k-th best score of the segments before
        segments = zip(self._parts, self._norms, self._long, by_segment, live, strict=False)
        # Not strict, since by_segment is empty if no term of the query is in the index.
        for part, norms, long, pairs, marks in segments:
            lists = _Lists(terms.weights, part.postings, pairs, norms, long)
            at, score = lists.best(marks, k, floor)
            rows.append(part.rows[at])
            scores.append(score)
            floor = max(floor, _kth_best(score, k))
            if len(also) and len(part.rows):
                at = np.minimum(part.rows.searchsorted(also), len(part.rows) - 1)
                here = part.rows[at] == also
                others[here] = lists.scores_of(at[here])
        row, score = np.concatenate(rows), np.concatenate(scores)
        order = np.lexsort((row, -score))[:k]
        return Matches(row[order], score[order], others, terms.most)


def _scores(
    weights: list[float], postings: Postings, by_term: TermPairs, norms: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Score the documents of a segment, (n_docs,); 0 if a document has none of the terms."""
    docs, gains = _all_gains(weights, postings, by_term, norms)
    return np.asarray(np.bincount(docs, gains, minlength=len(norms)), np.float64)


def _all_gains(
    weights: list[float], postings: Postings, by_term: TermPairs, norms: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the document of each pair, term by term, and what the pair adds to its score."""
    docs, counts = postings.read(by_term)
    return docs, _added(np.repeat(weights, list(map(len, by_term))), counts, norms[docs])


def _added(
    weight: float | NDArray[np.float64], counts: NDArray[np.float64], norms: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``weight * counts / (counts + norms)`` in place of counts; norms are overwritten.

    Arrays for what is in between would take a sixth of the time that the pairs of a term take.
    """
    norms += counts
    counts *= weight
    counts /= norms
    return counts


class _Lists:
    """The pairs of a query's terms in a segment, of which only those are read that can matter.

    The most that a term can add to a score follows from its pairs and the mean length of the live
    documents. It is found when a query first needs it, since every update changes the mean.

    Source: Turtle & Flood 1995, Query evaluation: strategies and optimizations, section 4.2
    ("MaxScore").
    """

    def __init__(
        self,
        weights: Mapping[int, float],
        postings: Postings,
        by_term: TermPairs,
        norms: NDArray[np.float64],
        long: dict[int, LongTerm],
    ) -> None:
        self._terms, self._weights = list(weights), list(weights.values())
        self._postings, self._by_term, self._norms, self._long = postings, by_term, norms, long

    def best(
        self, live: Live, k: int, floor: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return documents and scores, each (n,), with the k best of at least ``floor``."""
        n_pairs = sum(map(len, self._by_term))
        if n_pairs >= PRUNED_FROM:
            most = [weight * self._long_term(at).most for at, weight in enumerate(self._weights)]
            order = sorted(range(len(most)), key=most.__getitem__, reverse=True)
            rest = [sum(most[at] for at in order[n:]) for n in range(len(order) + 1)]
            floor = max(floor, self._sampled(order, live, k)) * _ROUNDED
            n_needed = next(n for n, more in enumerate(rest) if more < floor or n == len(order))
            if 2 * sum(len(self._by_term[at]) for at in order[:n_needed]) < n_pairs:
                return self._candidates(order, rest, n_needed, live, floor)
        if n_pairs * FEW < len(self._norms):
            docs, score = self._all_few()
        else:
            total = _scores(self._weights, self._postings, self._by_term, self._norms)
            docs = np.flatnonzero(total >= max(floor, self._floor(total, live, k)))
            score = total[docs]
        if live is not None:
            docs, score = docs[live[docs]], score[live[docs]]
        best = score >= max(floor, _kth_best(score, k))
        return docs[best], score[best]

    def _all_few(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the documents with one of the terms, ascending, and their `_scores`."""
        docs, gains = _all_gains(self._weights, self._postings, self._by_term, self._norms)
        order = docs.argsort(kind="stable")  # adds up in the order of the terms, as `_scores`
        docs = docs[order]
        is_new = _is_new(docs)
        score = np.bincount(is_new.cumsum() - 1, gains[order])
        return docs[is_new], np.asarray(score, np.float64)

    def scores_of(
        self, docs: NDArray[np.int64], known: Mapping[int, NDArray[np.float64]] | None = None
    ) -> NDArray[np.float64]:
        """Score some documents, (n,), bit for bit as `_scores`; ``known`` has gains of terms."""
        total, norms = np.zeros(len(docs)), self._norms[docs]
        for at in range(len(self._terms)):
            gains = known.get(at) if known else None
            total += self._gains_of(at, docs, norms) if gains is None else gains
        return total

    def _sampled(self, order: list[int], live: Live, k: int) -> float:
        """Return a lower bound of the k-th best score, from documents with a rare term."""
        for at in order:
            if len(self._by_term[at]) > SAMPLED_UP_TO:
                break
            docs, gains = self._gains(at)
            if live is not None:
                docs, gains = docs[live[docs]], gains[live[docs]]
            if len(docs) >= k:
                n = min(max(SAMPLE, k), len(docs))
                best = np.argpartition(gains, -n)[-n:]
                return _kth_best(self.scores_of(docs[best], {at: gains[best]}), k)
        return 0.0

    def _candidates(
        self, order: list[int], rest: list[float], n_needed: int, live: Live, floor: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return documents, ascending, and scores, each (n,); few score less than ``floor``.

        A document with none of the needed terms, the first of the order, is not looked at. ``rest``
        has the most that the terms from each place of the order on can add.
        """
        total, seen = np.zeros(len(self._norms)), [_NO_DOCS]
        for at in order[:n_needed]:
            docs, gains = self._gains(at)
            total[docs] += gains
            seen.append(docs)
        found = np.concatenate(seen)
        found = found[total[found] >= floor - rest[n_needed]]
        found = np.sort(found if live is None else found[live[found]])
        found = found[_is_new(found)]  # a document is seen once for each term
        score, norms, known = total[found], self._norms[found], {}
        for at, more in zip(order[n_needed:], rest[n_needed + 1 :], strict=True):
            known[at] = self._gains_of(at, found, norms)
            score += known[at]
            kept = score >= floor - more
            found, score, norms = found[kept], score[kept], norms[kept]
            known = {term: gains[kept] for term, gains in known.items()}
        return found, self.scores_of(found, known)

    def _gains(self, at: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the documents of a term, and what it adds to their scores, each (n,)."""
        docs, counts = self._postings.read([self._by_term[at]])
        return docs, _added(self._weights[at], counts, self._norms[docs])

    def _gains_of(
        self, at: int, docs: NDArray[np.int64], norms: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return what a term adds to the scores of any documents with these norms, (n,)."""
        span, postings = self._by_term[at], self._postings
        if not span:
            return np.zeros(len(docs))
        pairs = postings.pairs[span.start : span.stop]
        shift = np.uint32(postings.bits)
        keys = docs.astype(np.uint32) << shift  # at most as large as the pairs of the documents
        if len(pairs) < LONG_FROM:
            place = pairs.searchsorted(keys)
        else:
            # Only some blocks are read.
            keys |= np.uint32((1 << postings.bits) - 1)  # at least as large
            place = (self._long_term(at).firsts.searchsorted(keys, "right") - 1) * BLOCK
            step = BLOCK
            while step := step // 2:
                place += (pairs.take(place + step, mode="clip") <= keys) * step
        found = pairs.take(place, mode="clip")
        counts = postings.counts(found, lambda: place + span.start)
        counts *= found >> shift == docs
        return np.asarray(self._weights[at] * counts / (counts + norms))

    def _long_term(self, at: int) -> LongTerm:
        term, span = self._terms[at], self._by_term[at]
        if (known := self._long.get(term)) is None:
            docs, counts = self._postings.read([span])
            gains = _added(1.0, counts, self._norms[docs])
            firsts = self._postings.pairs[span.start : span.stop : BLOCK].copy()
            known = LongTerm(float(gains.max(initial=0.0)), firsts)
            if len(span) >= LONG_FROM:
                self._long[term] = known
        return known

    def _floor(self, total: NDArray[np.float64], live: Live, k: int) -> float:
        """Return a lower bound of the k-th best score of the live documents of a segment.

        The k-th best score among the documents with one term is at most the k-th best of all. The
        rarest term with k live documents has the fewest to sort, and tends to have the best scores.
        """
        for span in sorted(self._by_term, key=len):
            if len(span) >= k:
                docs = self._postings.docs(span)
                docs = docs if live is None else docs[live[docs]]
                if len(docs) >= k:
                    return _kth_best(total[docs], k)
        return 0.0


def _is_new(docs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the first of each run of equal documents; `np.diff` would take longer for few."""
    marks = np.ones(len(docs), bool)
    np.not_equal(docs[1:], docs[:-1], out=marks[1:])
    return marks


def _kth_best(scores: NDArray[np.float64], k: int) -> float:
    """Return the k-th best score; 0 if there are fewer."""
    return float(np.partition(scores, -k)[-k]) if len(scores) >= k else 0.0
