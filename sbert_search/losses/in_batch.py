"""Losses of a whole batch of embeddings, in which every text is a negative of the others."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize


def multiple_negatives(anchors: Tensor, candidates: Tensor, *, scale: float = 20.0) -> Tensor:
    """Find each anchor's positive among all candidates of the batch, by cosine.

    Args:
        anchors: Float (batch, dim).
        candidates: Float (n, dim), n ≥ batch: row i is the positive of anchor i, the rows after
            the positives are hard negatives.
        scale: Inverse temperature of the softmax.

    Returns:
        Mean cross-entropy over the anchors, a scalar.

    Sources: Henderson et al. 2017 (arXiv:1705.00652) section 4.4; scale and cosine as
    sentence-transformers' MultipleNegativesRankingLoss.
    """
    scores = normalize(anchors, dim=-1) @ normalize(candidates, dim=-1).T * scale  # (batch, n)
    return cross_entropy(scores, torch.arange(len(anchors), device=anchors.device))
