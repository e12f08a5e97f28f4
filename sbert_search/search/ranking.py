"""The documents that a stage of a search found for one query, best first, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sbert_search.records import StageScore


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents found for a query, best first.

    Attributes:
        docs: Row of each document's first passage, which names it, int64 (n,).
        rows: Row of its best passage, int64 (n,).
        scores: Float64 (n,), descending.
        stages: For each stage by name, the rank of each document in it, int64 (n,), 0 where the
            stage did not find the document, and its score in it, float64 (n,).
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
        """Record the present order and scores as those of a stage."""
        stages = {**self.stages, stage: (np.arange(1, len(self) + 1), self.scores)}
        return Ranking(self.docs, self.rows, self.scores, stages)

    def first(self, k: int) -> Ranking:
        """Keep the best k."""
        if len(self) <= k:
            return self
        return self.take(np.arange(min(k, len(self))), self.scores[:k])

    def take(self, order: NDArray[np.int64], scores: NDArray[np.float64]) -> Ranking:
        """Keep some documents in another order, with new scores, (n,)."""
        stages = {name: (r[order], s[order]) for name, (r, s) in self.stages.items()}
        return Ranking(self.docs[order], self.rows[order], scores, stages)

    def stages_of(self, index: int) -> dict[str, StageScore]:
        """Return the rank and score that each stage gave to one document, if it found it."""
        return {
            name: StageScore(int(ranks[index]), float(scores[index]))
            for name, (ranks, scores) in self.stages.items()
            if ranks[index]
        }
