"""Losses of two texts with a label or a score: one number a pair, whose mean is the batch's.

A pair's loss depends on no other pair, so batches in parts and on several ranks add up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, relu

from sbert_search.losses.distances import Distance, distances

CONCATENATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": lambda u, v: (u - v).abs(),
    "u*v": lambda u, v: u * v,
}
"""What a classifier of pairs may see of two embeddings."""


def concatenate(u: Tensor, v: Tensor, parts: Sequence[str] = ("u", "v", "|u-v|")) -> Tensor:
    """Put parts of two embeddings side by side, as a classifier of pairs sees them.

    Args:
        u: Embeddings of the first texts, float (batch, dim).
        v: Embeddings of the second texts, float (batch, dim).
        parts: Names in `CONCATENATIONS`.

    Returns:
        Float (batch, dim x parts).

    Source: Reimers & Gurevych 2019, Sentence-BERT, section 3 and table 6 (arXiv:1908.10084). The
    loss is the cross-entropy of a linear layer without activation over it.
    """
    return torch.cat([CONCATENATIONS[part](u, v) for part in parts], dim=-1)


def cosine_mse(u: Tensor, v: Tensor, scores: Tensor) -> Tensor:
    """Square the difference of each pair's cosine and its score.

    Args:
        u: Float (batch, dim).
        v: Float (batch, dim).
        scores: What the cosines should be, (batch,).

    Returns:
        Float (batch,).

    Source: Reimers & Gurevych 2019, section 3, regression objective.
    """
    return (cosine_similarity(u, v, dim=-1) - scores).square()


def contrastive(
    u: Tensor, v: Tensor, labels: Tensor, *, margin: float = 0.5, distance: Distance = "cosine"
) -> Tensor:
    """Pull pairs of label 1 together and push those of label 0 apart, up to a margin.

    Args:
        u: Float (batch, dim).
        v: Float (batch, dim).
        labels: 1 for pairs that belong together, 0 for others, (batch,).
        margin: Distance beyond which a pair of label 0 costs nothing.
        distance: What is measured.

    Returns:
        Float (batch,).

    Source: Hadsell, Chopra & LeCun 2006, Dimensionality Reduction by Learning an Invariant
    Mapping, section 2.1.
    """
    apart = distances(u, v, distance)
    together = labels.to(apart.dtype)
    return 0.5 * (together * apart.square() + (1 - together) * relu(margin - apart).square())
