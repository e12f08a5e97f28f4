"""Losses that want an anchor nearer to its positive than to a negative, by a margin.

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
    """Compare each anchor with its own positive and its own negative.

    Args:
        anchors: Float (batch, dim).
        positives: Float (batch, dim).
        negatives: Float (batch, dim).
        margin: By how much the negative should be farther than the positive.
        distance: What is measured. The paper has Euclidean distance and margin 1.

    Returns:
        Float (batch,).

    Source: Reimers & Gurevych 2019, Sentence-BERT, section 3 (arXiv:1908.10084).
    """
    gap = distances(anchors, positives, distance) - distances(anchors, negatives, distance)
    return relu(gap + margin)


def all_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Average over every triplet of a batch whose margin is not kept.

    Args:
        embeddings: Float (batch, dim).
        labels: Class of each, (batch,); embeddings of one class are each other's positives.
        margin: By how much a negative should be farther than a positive.
        distance: What is measured.

    Returns:
        A scalar; 0 when every margin is kept.
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
    """Compare each anchor's farthest positive with its nearest negative.

    Arguments and result are those of `all_triplets`. An anchor alone in its class counts its
    positive at distance 0; in a batch of one class the farthest embedding is the negative.
    """
    apart = all_distances(embeddings, distance)
    same = _same(labels)
    farthest = apart.masked_fill(~_positives(same), 0.0).amax(dim=1)
    nearest = torch.where(same, apart.amax(dim=1, keepdim=True), apart).amin(dim=1)
    return relu(farthest - nearest + margin).mean()


def semi_hard_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Compare each positive with the nearest negative that is farther than it.

    Where no negative is farther, the farthest of them all is taken. Arguments and result are those
    of `all_triplets`; the mean is over all pairs of anchor and positive.
    """
    apart = all_distances(embeddings, distance)
    same = _same(labels)
    negatives = apart.masked_fill(same, torch.inf).sort(dim=1).values
    place = torch.searchsorted(negatives.detach(), apart.detach(), right=True)
    outside = negatives.gather(1, place.clamp(max=len(same) - 1))
    nearest_of_all = apart.amin(dim=1, keepdim=True)  # stands in where there is no negative
    inside = torch.where(same, nearest_of_all, apart).amax(dim=1, keepdim=True)
    gap = apart - torch.where(outside.isfinite(), outside, inside) + margin
    positives = _positives(same)
    return (relu(gap) * positives).sum() / positives.sum().clamp(min=1)


def _same(labels: Tensor) -> Tensor:
    return labels.unsqueeze(0) == labels.unsqueeze(1)


def _positives(same: Tensor) -> Tensor:
    return same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
