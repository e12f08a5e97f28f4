"""Correlation of predicted similarities with gold scores, through scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.errors import EvaluationError


def spearman(predicted: ArrayLike, gold: ArrayLike) -> float:
    """Rank correlation; equal values share the mean of their ranks.

    Args:
        predicted: Similarities, (n,).
        gold: Scores to agree with, (n,).

    Returns:
        A value from -1 to 1.

    Raises:
        ValueError: The two are not one-dimensional and of one length of at least 2.
        EvaluationError: A value is not finite, or all values of one side are equal, so that no
            correlation is defined.
    """
    return float(_stats().spearmanr(*_checked(predicted, gold)).statistic)


def pearson(predicted: ArrayLike, gold: ArrayLike) -> float:
    """Linear correlation; arguments, result and errors as `spearman`."""
    return float(_stats().pearsonr(*_checked(predicted, gold)).statistic)


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Rank values from 1; equal ones share the mean of their ranks."""
    ranked: NDArray[np.float64] = _stats().rankdata(values)
    return ranked


def _checked(
    predicted: ArrayLike, gold: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.asarray(predicted, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise ValueError(f"Shapes {x.shape} and {y.shape} are not two equal lists of at least 2.")
    for side, values in (("predicted", x), ("gold", y)):
        if not np.isfinite(values).all():
            place = int(np.flatnonzero(~np.isfinite(values))[0])
            raise EvaluationError(f"The {side} score at position {place} is {values[place]}.")
        if (values == values[0]).all():
            raise EvaluationError(
                f"All {len(values)} {side} scores are {values[0]:g}; "
                "a correlation with a constant is not defined."
            )
    return x, y


def _stats() -> Any:
    from scipy import stats  # half a second that only evaluation pays

    return stats
