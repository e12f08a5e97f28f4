"""Calibration: the error of predicted probabilities, and the temperature that corrects them.

Source: Guo et al. 2017, On calibration of modern neural networks, sections 2 (expected calibration
error) and 4.2 (temperature scaling) (arXiv:1706.04599).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.evaluate.metrics.significance import equal_lists
from sbert_search.text.labelled.records import LabelKind

Floats = NDArray[np.float64]

BINS = 15  # as in the source
# Range of fitted temperatures. If all predictions are right, the likelihood has no optimum.
COLDEST, HOTTEST = 0.05, 20.0
_STEPS = 60  # steps of the bisection: more than the 53 bits of precision of a float64


def probabilities(logits: ArrayLike, kind: LabelKind, temperature: float = 1.0) -> Floats:
    """Turn logits into probabilities, float64 (n, labels).

    ``class``: the labels exclude each other (softmax); ``several``: each label is a decision of its
    own (sigmoid); ``number``: the logits are the result, unchanged.
    """
    scaled = np.asarray(logits, dtype=np.float64)
    if kind == "number":
        return scaled
    scaled = scaled / temperature
    if kind == "several":
        return np.exp(-np.logaddexp(0, -scaled))
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def expected_calibration_error(confidence: ArrayLike, right: ArrayLike) -> float:
    """Mean distance between confidence and accuracy, over `BINS` equal widths of the confidence.

    ``right`` is 1 where the prediction is right, else 0. Bin i holds the confidences above i / BINS
    up to (i + 1) / BINS.
    """
    sure, hits = equal_lists(confidence, right, fewest=1)
    index = np.clip(np.ceil(sure * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(index, weights=sure - hits, minlength=BINS)
    return float(np.abs(gaps).sum() / len(sure))


def calibration_error(
    logits: ArrayLike, gold: ArrayLike, kind: LabelKind, temperature: float
) -> float:
    """`expected_calibration_error` of logits, (n, labels); ``gold`` as for `fit_temperature`."""
    chances, truth = probabilities(logits, kind, temperature), np.asarray(gold)
    if kind == "several":  # each label of each text is a prediction of its own
        return expected_calibration_error(chances.ravel(), truth.ravel())
    return expected_calibration_error(chances.max(axis=1), np.argmax(logits, axis=1) == truth)


def fit_temperature(logits: ArrayLike, gold: ArrayLike, kind: LabelKind = "class") -> float:
    """Return the temperature, from `COLDEST` to `HOTTEST`, with the highest likelihood on items.

    They must not be training items of the model. ``gold`` has the index of each label, (n,); for
    ``several``, 1 for each label of an item and else 0, (n, labels). The most probable class of an
    item is the same at each temperature.
    """
    z, labels = np.asarray(logits, dtype=np.float64), np.asarray(gold)
    if kind == "number":
        return 1.0
    if z.ndim != 2 or not len(z) or labels.shape != (z.shape if kind == "several" else z.shape[:1]):
        raise ValueError(f"Logits {z.shape} and labels {labels.shape} do not fit together.")
    if kind == "several":
        reached = z * labels
    else:
        reached = np.take_along_axis(z, labels.astype(np.int64)[:, None], axis=1)
    # With b = 1 / temperature, the negative log-likelihood is convex in b, and its derivative is
    # the expected logit minus the logit of the label. The root is found by bisection.
    low, high = np.log(1 / HOTTEST), np.log(1 / COLDEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        expected = probabilities(z, kind, float(np.exp(-middle))) * z
        if expected.sum() <= reached.sum():
            low = middle
        else:
            high = middle
    return float(np.exp(-(low + high) / 2))
