"""Losses of pairs of texts with a label or a score; each returns one value for each pair.

The loss of a batch is the mean of these values. Each value depends on one pair only. If a batch is
split into parts, or over the processes of distributed training, the sums of the values of the parts
therefore add up to the sum of the values of the batch.
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
"""Functions of two embeddings u and v, by name; their results are inputs of a pair classifier."""


def concatenate(u: Tensor, v: Tensor, parts: Sequence[str] = ("u", "v", "|u-v|")) -> Tensor:
    """Concatenate functions of two embeddings, as the input of a classifier of pairs.

    Args:
        u: Embeddings of the first texts, float (batch, dim).
        v: Embeddings of the second texts, float (batch, dim).
        parts: Names of functions, keys of `CONCATENATIONS`.

    Returns:
        Float (batch, dim x number of parts).

    Source: Reimers & Gurevych 2019, Sentence-BERT, section 3 and table 6 (arXiv:1908.10084). Their
    classifier is one linear layer on this input, trained with cross-entropy.
    """
    return torch.cat([CONCATENATIONS[part](u, v) for part in parts], dim=-1)


def cosine_mse(u: Tensor, v: Tensor, scores: Tensor) -> Tensor:
    """Squared difference between the cosine similarity of each pair and the score of the pair.

    Args:
        u: Float (batch, dim).
        v: Float (batch, dim).
        scores: Target cosine of each pair, float (batch,).

    Returns:
        Float (batch,).

    Source: Reimers & Gurevych 2019, section 3, regression objective (arXiv:1908.10084).
    """
    return (cosine_similarity(u, v, dim=-1) - scores).square()


def contrastive(
    u: Tensor, v: Tensor, labels: Tensor, *, margin: float = 0.5, distance: Distance = "cosine"
) -> Tensor:
    """Contrastive loss: pull pairs of label 1 together, push pairs of label 0 apart up to a margin.

    Args:
        u: Float (batch, dim).
        v: Float (batch, dim).
        labels: 1 for pairs that belong together, 0 for others, (batch,).
        margin: Distance from which on the loss of a pair of label 0 is 0.
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
