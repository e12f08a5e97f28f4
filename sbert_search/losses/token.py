"""Losses that are sums over tokens, given as (sum, count).

The caller divides by the count over the whole batch, so a batch in parts, or on several ranks, has
the loss of the batch in one piece however the terms fall.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

IGNORED = -100
"""The label of a position that is not scored."""


def token_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Score the true id of every labelled position; there may be none.

    Args:
        logits: Of every class, float (..., classes).
        labels: The true class, int64 (...); `IGNORED` where nothing is scored.

    Returns:
        Negative log-likelihood in nats summed over the scored positions, and how many they are.
    """
    flat, scores = labels.flatten(), logits.flatten(0, -2).float()
    total = cross_entropy(scores, flat, ignore_index=IGNORED, reduction="sum")
    return total, (flat != IGNORED).sum()
