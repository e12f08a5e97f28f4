"""Divide documents into clusters by k-means, and name the clusters by their telling words.

All inflections of a word count as one word, as in lexical search. Stop words are ignored; for
English, their list is longer than that of lexical search.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.lexical.analyzer import STOP_WORD, TermReader
from sbert_search.index.settings import LexicalSettings, naming_stop_words

MOST_CLUSTERS = 50
_ROUNDS = 100  # largest number of iterations of k-means


def default_clusters(n_documents: int) -> int:
    """Return the default number of clusters: the cube root of ``n_documents``, at most 50."""
    return max(1, min(MOST_CLUSTERS, round(math.cbrt(n_documents))))


def divide(vectors: NDArray[np.float32], n_clusters: int, seed: int) -> NDArray[np.int32]:
    """Divide vectors, float32 (n, dim), into clusters; return the number of each one's, int32 (n,).

    Cluster 0 is the largest; of clusters of equal size, the one with the earliest vector comes
    first. There are fewer clusters if there are fewer different vectors.

    Source: Arthur & Vassilvitskii 2007, k-means++ (the first centres).
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    means = KMeans(min(n_clusters, len(vectors)), n_init=1, max_iter=_ROUNDS, random_state=seed)
    # With several threads, the order of additions, and so rounding, differs from run to run.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # too few different vectors
        labels = means.fit_predict(vectors)
    _, first, cluster, sizes = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    number = np.empty(len(first), np.int32)
    number[np.lexsort((first, -sizes))] = np.arange(len(first))
    return number[cluster]


WORDS = 8  # telling words of a cluster
READ_CHARACTERS = 20_000  # first characters of a document that are read
_MOST_WORDS = 4_000_000  # counts by word and cluster; if there are more, rare words are dropped


class WordCounts:
    """Counts the words of each cluster."""

    def __init__(self, settings: LexicalSettings, n_clusters: int) -> None:
        self._reader = TermReader(replace(settings, stop_words=naming_stop_words(settings)))
        self._counts: list[Counter[str]] = [Counter() for _ in range(n_clusters)]

    def add(self, text: str, cluster: int) -> None:
        """Count the words of a document; words of digits only are ignored."""
        words = self._reader.words(text[:READ_CHARACTERS])
        self._counts[cluster].update(word for word in words if not word.isdecimal())

    def drop_rare(self, most: int = _MOST_WORDS) -> None:
        """Drop words with one occurrence in a cluster, if there are more than ``most`` counts."""
        if sum(map(len, self._counts)) > most:
            self._counts = [Counter({w: n for w, n in c.items() if n > 1}) for c in self._counts]

    def telling(self, most: int = WORDS) -> list[list[str]]:
        """Return the ``most`` words of each cluster with the largest weights, the largest first.

        A word stands for its inflections and is shown in the form that is most frequent in the
        cluster. Words of equal weight are in alphabetical order.
        """
        shown, terms, counts = self._by_term()
        found = []
        for forms, of_terms, weights in zip(
            shown, terms, self._weighted(terms, counts), strict=True
        ):
            named = sorted(zip(-weights, (forms[term] for term in of_terms.tolist()), strict=True))
            found.append([word for _, word in named[:most]])
        return found

    def _by_term(
        self,
    ) -> tuple[list[dict[int, str]], list[NDArray[np.uint64]], list[NDArray[np.int64]]]:
        """Add up inflections by cluster; return the form to show by term, the terms, and counts."""
        shown, terms, counts = [], [], []
        for counter in self._counts:
            forms: dict[int, str] = {}
            total: Counter[int] = Counter()
            ordered = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
            hashes = self._reader.hashes([word for word, _ in ordered]).tolist()
            for (word, n), term in zip(ordered, hashes, strict=True):
                if term != STOP_WORD:
                    forms.setdefault(term, word)
                    total[term] += n
            shown.append(forms)
            terms.append(np.fromiter(total, np.uint64, len(total)))
            counts.append(np.fromiter(total.values(), np.int64, len(total)))
        return shown, terms, counts

    @staticmethod
    def _weighted(
        terms: list[NDArray[np.uint64]], counts: list[NDArray[np.int64]]
    ) -> Iterable[NDArray[np.float64]]:
        known, place = np.unique(np.concatenate(terms), return_inverse=True)
        totals = np.bincount(place, np.concatenate(counts), len(known)).astype(np.float64)
        sizes = [int(of_cluster.sum()) for of_cluster in counts]
        for of_terms, of_cluster in zip(terms, counts, strict=True):
            yield class_weights(of_cluster, totals[np.searchsorted(known, of_terms)], sizes)


def class_weights(
    counts: NDArray[np.int64], totals: NDArray[np.float64], sizes: list[int]
) -> NDArray[np.float64]:
    """Weigh the words of one cluster by class-based tf-idf, (n_words,).

    ``counts`` and ``totals`` are the occurrences of each word in the cluster and in all clusters;
    ``sizes`` is the number of words in each cluster. The weight is ``tf * log(1 + A / f)``: tf is
    the share of the word in the cluster, f its total, and A the mean size.

    Source: Grootendorst 2022, BERTopic, section 3.3 (arXiv:2203.05794).
    """
    share = counts / max(int(counts.sum()), 1)
    weights: NDArray[np.float64] = share * np.log1p(np.mean(sizes) / totals)
    return weights
