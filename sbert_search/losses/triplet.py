"""Triplet losses: an anchor should be nearer to its positive than to a negative, by a margin.

Source: Schroff et al. 2015, FaceNet (arXiv:1503.03832); Hermans et al. 2017, In Defense of the
Triplet Loss (arXiv:1703.07737), for triplets chosen inside a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import relu

from sbert_search.losses.distances import Distance, all_distances, distances


def triplet(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    margin: float = 1.0,
    distance: Distance = "euclidean",
) -> Tensor:
    """Triplet loss of each anchor with its own positive and negative.

    Args:
        anchors: Float (batch, dim).
        positives: Float (batch, dim).
        negatives: Float (batch, dim).
        margin: The loss is 0 if the negative is at least this much farther than the positive.
        distance: Distance function. Sentence-BERT uses Euclidean distance and margin 1.

    Returns:
        Float (batch,).

    Source: Reimers & Gurevych 2019, Sentence-BERT, section 3 (arXiv:1908.10084).
    """
    gap = distances(anchors, positives, distance) - distances(anchors, negatives, distance)
    return relu(gap + margin)


def all_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Mean loss of all triplets of a batch that violate the margin.

    Args:
        embeddings: Float (batch, dim).
        labels: Class of each embedding, (batch,). Embeddings of the same class are positives of
            each other, and those of other classes are negatives.
        margin: The loss is 0 if the negative is at least this much farther than the positive.
        distance: Distance function.

    Returns:
        A scalar; 0 if no triplet violates the margin.
    """
    matrix = all_distances(embeddings, distance)
    same = _same_class(labels)
    anchor, positive = _positives(same).nonzero(as_tuple=True)
    gap = matrix[anchor, positive].unsqueeze(1) - matrix[anchor] + margin  # (pairs, batch)
    violated = relu(gap) * ~same[anchor]
    return violated.sum() / (violated > 0).sum().clamp(min=1)


def hardest_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Triplet loss of each anchor with its farthest positive and its nearest negative.

    Arguments are those of `all_triplets`; the result is the mean over all anchors. For an anchor
    alone in its class the distance to the positive is 0. In a batch of one class the farthest
    embedding serves as the negative.
    """
    matrix = all_distances(embeddings, distance)
    same = _same_class(labels)
    farthest = matrix.masked_fill(~_positives(same), 0.0).amax(dim=1)
    nearest = torch.where(same, matrix.amax(dim=1, keepdim=True), matrix).amin(dim=1)
    return relu(farthest - nearest + margin).mean()


def semi_hard_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Triplet loss of each anchor and positive with a semi-hard negative.

    That is the nearest negative that is farther from the anchor than the positive is. If there is
    none, the farthest negative is used. Arguments are those of `all_triplets`; the result is the
    mean over all pairs of anchor and positive.

    Source: Schroff et al. 2015, section 3.2, semi-hard negatives.
    """
    matrix = all_distances(embeddings, distance)
    same = _same_class(labels)
    # The negatives of each anchor are sorted by distance. A binary search then finds the next
    # farther negative for each positive. This takes O(batch^2) memory; comparing all triplets would
    # take O(batch^3).
    negatives = matrix.masked_fill(same, torch.inf).sort(dim=1).values  # (batch, batch), inf at end
    index = torch.searchsorted(negatives.detach(), matrix.detach(), right=True)
    next_farther = negatives.gather(1, index.clamp(max=len(same) - 1))
    # Filling with the row's minimum keeps the maximum finite for an anchor without a negative.
    row_minimum = matrix.amin(dim=1, keepdim=True)
    farthest = torch.where(same, row_minimum, matrix).amax(dim=1, keepdim=True)
    gap = matrix - torch.where(next_farther.isfinite(), next_farther, farthest) + margin
    positives = _positives(same)
    return (relu(gap) * positives).sum() / positives.sum().clamp(min=1)


def _same_class(labels: Tensor) -> Tensor:
    return labels.unsqueeze(0) == labels.unsqueeze(1)


def _positives(same: Tensor) -> Tensor:
    return same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
