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
        margin: Least difference between the distances to the negative and to the positive.
        distance: Distance function. The paper uses Euclidean distance and margin 1.

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
        labels: Class of each, (batch,); embeddings of one class are each other's positives.
        margin: Least difference between the distances to a negative and to a positive.
        distance: Distance function.

    Returns:
        A scalar; 0 if no triplet violates the margin.
    """
    apart = all_distances(embeddings, distance)
    same = _same(labels)
    anchor, positive = _positives(same).nonzero(as_tuple=True)
    gap = apart[anchor, positive].unsqueeze(1) - apart[anchor] + margin  # (pairs, batch)
    violated = relu(gap) * ~same[anchor]
    return violated.sum() / (violated > 0).sum().clamp(min=1)


def hardest_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Triplet loss of each anchor with its farthest positive and its nearest negative.

    Arguments and result are those of `all_triplets`. For an anchor alone in its class the distance
    to the positive is 0. In a batch of one class the farthest embedding serves as the negative.
    """
    apart = all_distances(embeddings, distance)
    same = _same(labels)
    farthest = apart.masked_fill(~_positives(same), 0.0).amax(dim=1)
    nearest = torch.where(same, apart.amax(dim=1, keepdim=True), apart).amin(dim=1)
    return relu(farthest - nearest + margin).mean()


def semi_hard_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Triplet loss of each positive with the nearest negative that is farther from the anchor.

    If no negative is farther than the positive, the farthest negative is used. Arguments and result
    are those of `all_triplets`; the mean is over all pairs of anchor and positive.

    Source: Schroff et al. 2015, section 3.2, semi-hard negatives.
    """
    apart = all_distances(embeddings, distance)
    same = _same(labels)
    # Sorted once per anchor, the negatives give the next farther one for every positive by binary
    # search: O(batch^2) memory, where comparing all triplets would need O(batch^3).
    negatives = apart.masked_fill(same, torch.inf).sort(dim=1).values  # (batch, batch), inf: none
    index = torch.searchsorted(negatives.detach(), apart.detach(), right=True)
    next_farther = negatives.gather(1, index.clamp(max=len(same) - 1))
    # Filling with the row's minimum keeps the maximum finite for an anchor without a negative.
    row_minimum = apart.amin(dim=1, keepdim=True)
    farthest = torch.where(same, row_minimum, apart).amax(dim=1, keepdim=True)
    gap = apart - torch.where(next_farther.isfinite(), next_farther, farthest) + margin
    positives = _positives(same)
    return (relu(gap) * positives).sum() / positives.sum().clamp(min=1)


def _same(labels: Tensor) -> Tensor:
    return labels.unsqueeze(0) == labels.unsqueeze(1)


def _positives(same: Tensor) -> Tensor:
    return same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
