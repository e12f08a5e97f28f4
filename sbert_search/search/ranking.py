"""The documents that a stage of a search found for one query, best first, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sbert_search.records import StageScore

UNRANKED = -1  # the rank of a document whose score in a stage is known, but not its rank


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents found for a query, best first.

    Attributes:
        docs: Number of each document, int64 (n,): the row of its first passage.
        rows: Row of each document's best passage, int64 (n,).
        scores: Score of each document, float64 (n,). The scores descend, except after diversity,
            after grouping, and at the documents that `followed_by` added.
        stages: Two arrays for each stage of the search, by its name: the rank that the stage gave
            to each document, int64 (n,), `UNRANKED`, or 0 if the stage did not find the document;
            and the score of each document in the stage, float64 (n,).
    """

    docs: NDArray[np.int64]
    rows: NDArray[np.int64]
    scores: NDArray[np.float64]
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

        If only one of the rankings has a stage, the documents of the other ranking get the rank 0
        and the score 0 in this stage.
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
    """Ranks and scores of documents in a stage that did not find them."""
    return np.zeros(n, np.int64), np.zeros(n)
