"""Correlation of predicted similarities with gold scores, through scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.errors import EvaluationError, TrainingError
from sbert_search.evaluate.metrics.significance import equal_lists


def spearman(predicted: ArrayLike, gold: ArrayLike) -> float:
    """Spearman's rank correlation of (n,) values; equal values get the mean of their ranks.

    EvaluationError if a value is not finite, or if the correlation is undefined: of fewer than 2
    values, or of values that are all equal.
    """
    return float(_stats().spearmanr(*_check_scores(predicted, gold)).statistic)


def pearson(predicted: ArrayLike, gold: ArrayLike) -> float:
    """Pearson's linear correlation, with the errors of `spearman`."""
    return float(_stats().pearsonr(*_check_scores(predicted, gold)).statistic)


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Rank values from 1, ascending; equal values get the mean of their ranks."""
    ranked: NDArray[np.float64] = _stats().rankdata(values)
    return ranked


def _check_scores(
    predicted: ArrayLike, gold: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = equal_lists(predicted, gold)
    if len(x) < 2:
        raise EvaluationError(
            f"The number of scored rows is {len(x)}; a correlation needs at least 2."
        )
    for name, values in (("predicted", x), ("gold", y)):
        if not np.isfinite(values).all():
            position = int(np.flatnonzero(~np.isfinite(values))[0])
            raise EvaluationError(f"The {name} score at position {position} is {values[position]}.")
        if (values == values[0]).all():
            raise EvaluationError(
                f"All {len(values)} {name} scores are {values[0]:g}; "
                "the correlation with a constant is undefined."
            )
    return x, y


def _stats() -> ModuleType:
    from scipy import stats  # the import takes half a second; only evaluation needs it

    module: ModuleType = stats
    return module


METRICS = ("spearman", "pearson")


class GoldScores:
    """The gold scores of dev rows, (n,), of which not all may be equal."""

    def __init__(self, scores: ArrayLike, sources: Sequence[str]) -> None:
        """Store the scores of all rows and, for errors, the ``file:line`` of each row."""
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
        return {"spearman": spearman(values, self.scores), "pearson": pearson(values, self.scores)}
