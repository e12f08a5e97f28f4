"""Losses of pairs of texts with a label or a score; one value for each pair.

The loss of a batch is the mean of these values. A value depends on one pair only. So if a batch is
split into parts or over ranks, the sums of the parts add up to the sum of the batch.
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
"""Features of two embeddings u and v for a classifier of pairs, by name."""


def concatenate(u: Tensor, v: Tensor, parts: Sequence[str] = ("u", "v", "|u-v|")) -> Tensor:
    """Concatenate features of two embeddings, as the input of a classifier of pairs.

    Args:
        u: Embeddings of the first texts, float (batch, dim).
        v: Embeddings of the second texts, float (batch, dim).
        parts: Names of features, keys of `CONCATENATIONS`.

    Returns:
        Float (batch, dim x number of parts).

    Source: Reimers & Gurevych 2019, Sentence-BERT, section 3 and table 6 (arXiv:1908.10084). Their
    classifier is one linear layer over the result, without an activation, trained with
    cross-entropy.
    """
    return torch.cat([CONCATENATIONS[part](u, v) for part in parts], dim=-1)


def cosine_mse(u: Tensor, v: Tensor, scores: Tensor) -> Tensor:
    """Squared difference between the cosine of each pair and its score.

    Args:
        u: Float (batch, dim).
        v: Float (batch, dim).
        scores: Target cosines, (batch,).

    Returns:
        Float (batch,).

    Source: Reimers & Gurevych 2019, section 3, regression objective.
    """
    return (cosine_similarity(u, v, dim=-1) - scores).square()


def contrastive(
    u: Tensor, v: Tensor, labels: Tensor, *, margin: float = 0.5, distance: Distance = "cosine"
) -> Tensor:
    """Contrastive loss: pull pairs of label 1 together, push pairs of label 0 apart to a margin.

    Args:
        u: Float (batch, dim).
        v: Float (batch, dim).
        labels: 1 for pairs that belong together, 0 for others, (batch,).
        margin: Distance beyond which the loss of a pair of label 0 is 0.
        distance: Distance function.

    Returns:
        Float (batch,).

    Source: Hadsell, Chopra & LeCun 2006, Dimensionality Reduction by Learning an Invariant
    Mapping, section 2.1.
    """
    pair_distances = distances(u, v, distance)
    together = labels.to(pair_distances.dtype)
    pull, push = pair_distances.square(), relu(margin - pair_distances).square()
    return 0.5 * (together * pull + (1 - together) * push)
