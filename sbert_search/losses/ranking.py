"""Losses of pairs of texts that compare the pairs of a batch with each other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad


def cosent(similarities: Tensor, scores: Tensor, *, scale: float = 20.0) -> Tensor:
    """CoSENT loss: penalise every two pairs whose similarities are not in the order of the scores.

    Args:
        similarities: Similarity of the two texts of each pair, float (batch,).
        scores: Gold score of each pair, (batch,); pairs with equal scores are not compared.
        scale: Factor of the similarities (inverse temperature).

    Returns:
        log(1 + sum of exp(scale x (similarity of pair i - similarity of pair j))), a scalar. The
        sum is over all i and j where pair i has a lower score than pair j.

    Source: Su 2022, CoSENT (kexue.fm/archives/8847), as in sentence-transformers' CoSENTLoss.
    """
    scaled = similarities.float() * scale
    differences = scaled.unsqueeze(1) - scaled.unsqueeze(0)  # [i, j]: pair i minus pair j
    inverted = differences[scores.unsqueeze(1) < scores.unsqueeze(0)]
    return torch.cat([differences.new_zeros(1), inverted]).logsumexp(dim=0)


def angle_similarity(u: Tensor, v: Tensor) -> Tensor:
    """Similarity of row i of ``u`` and row i of ``v``, taken as vectors of complex numbers.

    The first half of an embedding holds real parts, the second half imaginary parts; if ``dim`` is
    odd, a 0 is appended first. The gradient of a cosine almost vanishes where the cosine is near 1
    or -1; the gradient of this similarity does not vanish there.

    Args:
        u: Float (batch, dim).
        v: Float (batch, dim).

    Returns:
        Float (batch,), from 0 to the square root of 2. The angle loss is `cosent` of these
        similarities.

    Source: Li & Li 2024, AoE: Angle-optimized Embeddings, section 3 (arXiv:2309.12871).
    """
    odd = u.shape[-1] % 2
    u, v = (normalize(pad(x, (0, odd)), dim=-1) for x in (u, v))
    (real_u, imaginary_u), (real_v, imaginary_v) = u.chunk(2, dim=-1), v.chunk(2, dim=-1)
    sines = (imaginary_u * real_v - real_u * imaginary_v).sum(dim=-1)
    return ((u * v).sum(dim=-1) + sines).abs()


def online_contrastive(pair_distances: Tensor, labels: Tensor, *, margin: float = 0.5) -> Tensor:
    """Contrastive loss over the hard pairs of a batch only.

    Args:
        pair_distances: Distance of the two texts of each pair, float (batch,).
        labels: 1 for pairs that belong together, 0 for others, (batch,).
        margin: Distance from which on the loss of a pair of label 0 is 0.

    Returns:
        Sum of the losses of the hard pairs, a scalar. A pair of label 1 is hard if its distance is
        larger than the smallest distance of a pair of label 0. A pair of label 0 is hard if its
        distance is smaller than the largest distance of a pair of label 1.

    Source: sentence-transformers' OnlineContrastiveLoss.
    """
    positives, negatives = pair_distances[labels == 1], pair_distances[labels == 0]
    # If no pair has one of the labels, the mean distance of the pairs with the other label replaces
    # the smallest or largest distance.
    nearest_negative = negatives.amin() if len(negatives) else positives.mean()
    farthest_positive = positives.amax() if len(positives) else negatives.mean()
    hard_positives = positives[positives > nearest_negative]
    hard_negatives = negatives[negatives < farthest_positive]
    return hard_positives.square().sum() + (margin - hard_negatives).relu().square().sum()
