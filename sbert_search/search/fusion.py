"""Rankings of documents as arrays, best first, and fusing those of dense and lexical search.

Sources: weighted sum of scores on fixed scales: Bruch, Gai & Ingber 2023, An Analysis of Fusion
Functions for Hybrid Retrieval, section 4 (arXiv:2210.11934), with the upper limit of BM25 in place
of the best score found. Reciprocal rank fusion: Cormack, Clarke & Büttcher 2009 (SIGIR), k = 60.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.cache import typed_lru_cache
from sbert_search.records import StageScore
from sbert_search.search.options import Fusion

UNRANKED = -1  # the rank of a document whose score in a stage is known, but not its rank


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents found for a query, best first."""

    docs: NDArray[np.int64]  # (n,); a document is the row of its first passage
    rows: NDArray[np.int64]  # (n,), of each document's best passage
    # (n,), descending, except after diversity, grouping and `followed_by`.
    scores: NDArray[np.float64]
    # By stage: the rank that it gave to each document (n,), `UNRANKED`, or 0 if it did not find the
    # document; and the document's score in the stage (n,)
    stages: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = field(
        default_factory=dict
    )

    def __len__(self) -> int:
        return len(self.docs)

    def with_stage(self, stage: str) -> Ranking:
        """Return this ranking with its order and scores recorded in ``stages`` for a stage."""
        stages = {**self.stages, stage: (np.arange(1, len(self) + 1), self.scores)}
        return Ranking(self.docs, self.rows, self.scores, stages)

    def first(self, k: int) -> Ranking:
        """Return the k best documents."""
        if len(self) <= k:
            return self
        return self.take(np.arange(k))

    def above(self, least: float | None) -> Ranking:
        """Return the documents with a score of at least ``least``; None: all."""
        return self if least is None else self.take(np.flatnonzero(self.scores >= least))

    def followed_by(self, other: Ranking) -> Ranking:
        """Return the documents of this ranking and then those of another one.

        In a stage that only one of them has, the documents of the other get the rank 0 and the
        score 0.
        """
        stages = {}
        for name in dict.fromkeys([*self.stages, *other.stages]):
            parts = [each.stages.get(name, _absent(len(each))) for each in (self, other)]
            ranks, scores = zip(*parts, strict=True)
            stages[name] = np.concatenate(ranks), np.concatenate(scores)
        return Ranking(
            np.concatenate([self.docs, other.docs]),
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.scores, other.scores]),
            stages,
        )

    def take(self, order: NDArray[np.int64], scores: NDArray[np.float64] | None = None) -> Ranking:
        """Return the documents at the indices ``order`` (m,), with new scores (m,) if given."""
        stages = {name: (r[order], s[order]) for name, (r, s) in self.stages.items()}
        scores = self.scores[order] if scores is None else scores
        return Ranking(self.docs[order], self.rows[order], scores, stages)

    def stages_of(self, index: int) -> dict[str, StageScore]:
        """Return the rank and score of one document in each stage that has a score of it."""
        return {
            name: StageScore(
                None if ranks[index] == UNRANKED else int(ranks[index]), float(scores[index])
            )
            for name, (ranks, scores) in self.stages.items()
            if ranks[index]
        }


def _absent(n: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return np.zeros(n, np.int64), np.zeros(n)


DEEPER = 4  # factor from one limit of ranks to the next; see `blocks_of`
# A mean cosine of unrelated texts up to this is low: the cosines of a model use most of their
# scale, and they are not mapped, so that a user can read them in the score.
LOW_COSINE = 0.2

_NO_RANK = np.iinfo(np.int64).max
_LIMITS = 20  # number of limits of ranks; the last one is above any number of documents


class Candidates(NamedTuple):
    """The documents that dense or lexical search found for a query; all arrays are (n,)."""

    docs: NDArray[np.int64]  # ascending
    rows: NDArray[np.int64]  # of each document's best passage by its vector
    dense_ranks: NDArray[np.int64]  # 0: not found by the dense stage
    dense_scores: NDArray[np.float64]  # by the metric of the index
    dense: NDArray[np.float64]  # part of the fused score; see `dense_part`
    lexical_ranks: NDArray[np.int64]  # 0: not found by the lexical stage
    lexical_scores: NDArray[np.float64]  # of BM25; 0: no word of the query matches
    lexical: NDArray[np.float64]  # part of the fused score; see `lexical_part`


def dense_part(cosines: NDArray[np.float64], unrelated: float) -> NDArray[np.float64]:
    """Map cosines so that unrelated texts of the model have about 0, and equal ones 1.

    ``unrelated`` is the mean cosine of unrelated texts, which belongs to the model. Up to
    `LOW_COSINE`, the cosines are returned as they are.
    """
    return cosines if unrelated <= LOW_COSINE else (cosines - unrelated) / (1 - unrelated)


def lexical_part(scores: NDArray[np.float64], most: float) -> NDArray[np.float64]:
    """Divide BM25 scores (n,) by the most that BM25 can give to the query; at most 1.

    ``most`` is the sum of the inverse document frequencies of the query's words that the index has;
    0: it has none. A repeated word counts as often as it occurs, and the words of a phrase one by
    one. In a fuzzy search, a word that the index lacks counts by the nearest word that it has.
    Title weights raise a score, but not the limit.
    """
    return np.minimum(scores / most, 1.0) if most > 0 else np.zeros(len(scores))


def fuse(candidates: Candidates, settings: Fusion) -> Ranking:
    """Rank the documents of two stages by their fused score.

    The order is that of the blocks of `blocks_of`, and within a block that of the scores, so the
    first documents are the same however many are asked for. A stage of weight 0 adds no documents
    to a block; its documents follow all others. Equal scores are ordered by the better rank, then
    by row.
    """
    dense_ranks, lexical_ranks = candidates.dense_ranks, candidates.lexical_ranks
    dense_ranks = np.where(dense_ranks > 0, dense_ranks, _NO_RANK)
    lexical_ranks = np.where(lexical_ranks > 0, lexical_ranks, _NO_RANK)
    better = np.minimum(dense_ranks, lexical_ranks)
    weight = settings.dense_weight
    counted = lexical_ranks if weight == 0 else dense_ranks if weight == 1 else better
    limits = _limits(settings.depth)
    blocks = limits[:-1].searchsorted(counted)
    dense, lexical = candidates.dense, candidates.lexical
    if settings.method == "rrf":
        dense, lexical = _reciprocal(dense_ranks, settings), _reciprocal(lexical_ranks, settings)
    # Not a matrix product, whose rounding may depend on the number of documents.
    total = weight * dense + (1 - weight) * lexical
    order = np.lexsort((candidates.docs, better, -total, blocks))
    # A rank beyond the limit of the block is known only if so many documents are asked for.
    known = np.minimum(limits[blocks[order]], _NO_RANK - 1)
    dense_ranks, lexical_ranks = dense_ranks[order], lexical_ranks[order]
    words = candidates.lexical_scores[order]
    stages = {
        "dense": (
            np.where(dense_ranks <= known, dense_ranks, UNRANKED),
            candidates.dense_scores[order],
        ),
        "lexical": (
            np.where(words == 0, 0, np.where(lexical_ranks <= known, lexical_ranks, UNRANKED)),
            words,
        ),
        "fused": (np.arange(1, len(order) + 1), total[order]),
    }
    return Ranking(candidates.docs[order], candidates.rows[order], total[order], stages)


def _reciprocal(ranks: NDArray[np.int64], settings: Fusion) -> NDArray[np.float64]:
    return np.where(ranks <= settings.depth, 1 / (settings.rrf_k + ranks.astype(np.float64)), 0.0)


def limit_beyond(candidates: Candidates, settings: Fusion, n: int, *, by_cosine: bool) -> float:
    """Return an upper limit of the scores of all documents that neither stage ranks up to n.

    ``candidates`` are the documents that a stage ranks up to n, a rank from ``settings.depth`` on.
    """
    dense_parts = candidates.dense[candidates.dense_ranks > 0]
    words = candidates.lexical[candidates.lexical_ranks > 0]
    # Dense search ranks every document, or none for a query whose vector has no direction.
    if len(dense_parts) < n and (len(dense_parts) or len(words) < n):
        return -np.inf  # there are no others
    if settings.method == "rrf":
        return 0.0
    lexical = words.min() if len(words) >= n else 0.0
    # The order by another metric says nothing of the cosines, which are at most 1.
    dense = dense_parts.min(initial=1.0) if by_cosine else 1.0
    return float(settings.dense_weight * dense + (1 - settings.dense_weight) * lexical)


def blocks_of(ranks: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
    """Return the block of each rank, from 1: 0 up to ``depth``, 1 up to 4 times ``depth``, ..."""
    return np.searchsorted(_limits(depth)[:-1], ranks)


def whole_blocks(n: int, depth: int) -> int:
    """Return the last rank of the block that has the rank ``n``."""
    limits = _limits(depth)
    return int(limits[np.searchsorted(limits[:-1], n)])


@typed_lru_cache(maxsize=16)
def _limits(depth: int) -> NDArray[np.int64]:
    """Return the last rank of each block, int64 (`_LIMITS` + 1,)."""
    powers = [min(int(depth) * DEEPER**block, _NO_RANK) for block in range(_LIMITS)]
    return np.array([*powers, _NO_RANK], np.int64)
