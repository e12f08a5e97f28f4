"""Triplet losses: an anchor should be nearer to its positive than to a negative, by a margin.

Sources: Schroff et al. 2015, FaceNet (arXiv:1503.03832); Hermans et al. 2017, In Defense of the
Triplet Loss (arXiv:1703.07737), for triplets that are formed from the labels of a batch.
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
    """Triplet loss of each anchor with the positive and the negative in the same row.

    Args:
        anchors: Float (batch, dim).
        positives: Float (batch, dim).
        negatives: Float (batch, dim).
        margin: The loss of a row is 0 if the negative is farther from the anchor than the positive
            by at least this distance.
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
    """Mean loss of those triplets of a batch whose loss is above 0.

    A triplet is an anchor, one of its positives and one of its negatives.

    Args:
        embeddings: Float (batch, dim).
        labels: Class of each embedding, (batch,). Two embeddings are positives of each other if
            their classes are equal, otherwise negatives.
        margin: The loss of a triplet is 0 if the negative is farther from the anchor than the
            positive by at least this distance.
        distance: Distance function.

    Returns:
        A scalar; 0 if no triplet has a loss above 0.
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

    Arguments are those of `all_triplets`; the result is the mean over all anchors, a scalar. If an
    anchor has no positive, 0 is taken as the distance to the positive. If the whole batch has one
    class, the farthest embedding is taken as the negative.
    """
    matrix = all_distances(embeddings, distance)
    same = _same_class(labels)
    farthest = matrix.masked_fill(~_positives(same), 0.0).amax(dim=1)
    nearest = torch.where(same, matrix.amax(dim=1, keepdim=True), matrix).amin(dim=1)
    return relu(farthest - nearest + margin).mean()


def semi_hard_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Triplet loss of each anchor and each of its positives with a semi-hard negative.

    The semi-hard negative is the nearest of the negatives that are farther from the anchor than the
    positive is. If no negative is farther than the positive, the farthest negative is used.
    Arguments are those of `all_triplets`; the result is the mean over all pairs of anchor and
    positive, a scalar.

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
    # An anchor without a negative has only the row's minimum here, so its maximum is finite.
    row_minimum = matrix.amin(dim=1, keepdim=True)
    farthest = torch.where(same, row_minimum, matrix).amax(dim=1, keepdim=True)
    gap = matrix - torch.where(next_farther.isfinite(), next_farther, farthest) + margin
    positives = _positives(same)
    return (relu(gap) * positives).sum() / positives.sum().clamp(min=1)


def _same_class(labels: Tensor) -> Tensor:
    return labels.unsqueeze(0) == labels.unsqueeze(1)


def _positives(same: Tensor) -> Tensor:
    return same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
