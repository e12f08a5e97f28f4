"""Losses with in-batch negatives: the positive of one row is a negative for all other rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize


def multiple_negatives_ranking(
    anchors: Tensor, candidates: Tensor, *, scale: float = 20.0, symmetric: bool = False
) -> Tensor:
    """Cross-entropy of each anchor's positive among all candidates; logits are scaled cosines.

    If anchor and positive are the same text, encoded twice with dropout, this is SimCSE (Gao et al.
    2021, arXiv:2104.08821, section 3). In distributed training the caller gathers the anchors and
    candidates of all processes.

    Args:
        anchors: Float (batch, dim).
        candidates: Float (n, dim), n ≥ batch: row i is the positive of anchor i; any rows after
            the positives are hard negatives, which are negatives for all anchors.
        scale: Factor of the cosines, which is the inverse of the softmax temperature.
        symmetric: Whether to average with the cross-entropy of each positive's anchor among all
            anchors.

    Returns:
        Mean cross-entropy, a scalar.

    Sources: Henderson et al. 2017 (arXiv:1705.00652) section 4.4; scale and cosine as in
    sentence-transformers' MultipleNegativesRankingLoss.
    """
    scores = normalize(anchors, dim=-1) @ normalize(candidates, dim=-1).T * scale  # (batch, n)
    target = torch.arange(len(anchors), device=anchors.device)
    forward = cross_entropy(scores, target)
    if not symmetric:
        return forward
    return (forward + cross_entropy(scores[:, : len(anchors)].T, target)) / 2
