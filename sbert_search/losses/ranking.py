"""Losses of a batch of pairs, which compare how similar one pair is with how similar others are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad


def cosent(similarities: Tensor, scores: Tensor, *, scale: float = 20.0) -> Tensor:
    """Penalise every two pairs whose similarities stand against the order of their scores.

    Args:
        similarities: Of each pair, float (batch,).
        scores: What decides the order, (batch,); equal ones are not compared.
        scale: Inverse temperature.

    Returns:
        log(1 + sum of exp(scale x (lower-scored - higher-scored similarity))), a scalar.

    Source: Su 2022, CoSENT (kexue.fm/archives/8847), as sentence-transformers' CoSENTLoss.
    """
    scaled = similarities.float() * scale
    differences = scaled.unsqueeze(1) - scaled.unsqueeze(0)  # (batch, batch), [i, j] = i - j
    against = differences[scores.unsqueeze(1) < scores.unsqueeze(0)]
    return torch.cat([differences.new_zeros(1), against]).logsumexp(dim=0)


def angle_similarity(u: Tensor, v: Tensor) -> Tensor:
    """Compare embeddings as complex numbers, whose angle does not saturate as the cosine does.

    Args:
        u: Float (batch, dim); the second half of a vector is the imaginary part of its first.
        v: Float (batch, dim).

    Returns:
        Float (batch,), at least 0; `cosent` of it is the angle loss.

    Source: Li & Li 2024, AoE: Angle-optimized Embeddings, section 3 (arXiv:2309.12871).
    """
    odd = u.shape[-1] % 2
    u, v = (normalize(pad(x, (0, odd)), dim=-1) for x in (u, v))
    (real_u, imaginary_u), (real_v, imaginary_v) = u.chunk(2, dim=-1), v.chunk(2, dim=-1)
    sines = (imaginary_u * real_v - real_u * imaginary_v).sum(dim=-1)
    return ((u * v).sum(dim=-1) + sines).abs()


def online_contrastive(pair_distances: Tensor, labels: Tensor, *, margin: float = 0.5) -> Tensor:
    """Learn from the pairs of a batch that are still on the wrong side.

    Args:
        pair_distances: Distance of the two texts of each pair, float (batch,).
        labels: 1 for pairs that belong together, 0 for others, (batch,).
        margin: Distance beyond which a pair of label 0 costs nothing.

    Returns:
        Sum over the positives farther than the nearest negative, and the negatives nearer than the
        farthest positive, a scalar.

    Source: sentence-transformers' OnlineContrastiveLoss.
    """
    together, apart = pair_distances[labels == 1], pair_distances[labels == 0]
    floor = apart.amin() if len(apart) else together.mean()
    ceiling = together.amax() if len(together) else apart.mean()
    hard_positives, hard_negatives = together[together > floor], apart[apart < ceiling]
    return hard_positives.square().sum() + (margin - hard_negatives).relu().square().sum()
