"""Correlate the predictions of a model with the gold scores of dev data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sbert_search.errors import TrainingError
from sbert_search.metrics.correlation import pearson, spearman

METRICS = ("spearman", "pearson")


class GoldScores:
    """The gold scores of dev rows."""

    def __init__(self, scores: ArrayLike, sources: Sequence[str]) -> None:
        """Store the scores of all rows, (n,), and the ``file:line`` of each row, for errors.

        Raises:
            TrainingError: All scores are equal, so the correlation is undefined.
        """
        self.scores = np.asarray(scores, dtype=np.float64)
        if len(np.unique(self.scores)) < 2:
            raise TrainingError(
                f"All {len(sources):,} dev rows from {sources[0]} to {sources[-1]} have the score "
                f"{self.scores[0]:g}, with which no correlation is defined. Add rows with another "
                "score, or leave data.dev out."
            )

    def correlations(self, predicted: ArrayLike) -> dict[str, float]:
        """Compute `METRICS` of predictions, (n,); NaN if all are equal or one is not finite.

        This is no error, since a model may recover from equal predictions during training, and the
        training itself refuses losses that are not finite.
        """
        values = np.asarray(predicted, dtype=np.float64)
        if not np.isfinite(values).all() or (values == values[0]).all():
            return dict.fromkeys(METRICS, math.nan)
        return {
            "spearman": spearman(values, self.scores),
            "pearson": pearson(values, self.scores),
        }
