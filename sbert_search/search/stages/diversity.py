"""Diversity: documents that resemble better ones are moved down, by maximal marginal relevance.

Source: Carbonell & Goldstein 1998, The Use of MMR, Diversity-Based Reranking for Reordering
Documents and Producing Summaries (SIGIR), with lambda = 1 - diversity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.norms import normalised
from sbert_search.index.snapshot import Snapshot
from sbert_search.search.ranking import Ranking

# Cosines are rounded, so that equal vectors are equally similar in spite of float32's errors.
_DECIMALS = 6


def diversified(
    snapshot: Snapshot,
    ranking: Ranking,
    relevance: NDArray[np.float64],
    diversity: float,
    n: int,
) -> Ranking:
    """Choose documents one by one: each is relevant and unlike those chosen before.

    The next document is the one with the highest value of ``(1 - diversity) * relevance -
    diversity * similarity``. Among documents with equal values, it is the one with the better rank.
    For the similarity, a document is represented by the stored vector of its best passage. The
    similarity is the highest cosine between the document and a document chosen before. It is 0 for
    the first document.

    Args:
        snapshot: State of the index that the ranking belongs to.
        ranking: The candidates, best first.
        relevance: The relevance of each candidate, such as its score, (n_candidates,).
        diversity: Weight of the similarity, from 0 to 1.
        n: Number of documents to choose.

    Returns:
        The chosen documents with unchanged scores. The scores of the stage ``mmr`` are the values
        of the formula above.
    """
    n = min(n, len(ranking))
    if n == 0:
        return ranking.with_stage("mmr")
    vectors = normalised(snapshot.vectors(ranking.rows))
    gains = (1 - diversity) * relevance
    closest, free = np.zeros(len(ranking)), np.ones(len(ranking), bool)
    chosen, values = np.empty(n, np.int64), np.empty(n)
    for i in range(n):
        value = np.where(free, gains - diversity * closest, -np.inf)
        chosen[i] = best = int(np.argmax(value))
        values[i], free[best] = value[best], False
        similarity = np.round((vectors @ vectors[best]).astype(np.float64), _DECIMALS)
        closest = similarity if i == 0 else np.maximum(closest, similarity)
    kept = ranking.take(chosen)
    stages = {**kept.stages, "mmr": (np.arange(1, n + 1), values)}
    return Ranking(kept.docs, kept.rows, kept.scores, stages)
