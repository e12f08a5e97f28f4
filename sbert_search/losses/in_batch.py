"""Losses of a whole batch of embeddings, in which every text is a negative of the others."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize


def multiple_negatives(
    anchors: Tensor, candidates: Tensor, *, scale: float = 20.0, symmetric: bool = False
) -> Tensor:
    """Find each anchor's positive among all candidates of the batch, by cosine.

    With one text in two dropout passes as anchor and positive this is SimCSE (Gao et al. 2021,
    arXiv:2104.08821, section 3). Across ranks, the caller gathers both arguments.

    Args:
        anchors: Float (batch, dim).
        candidates: Float (n, dim), n ≥ batch: row i is the positive of anchor i, the rows after
            the positives are hard negatives, any number of them.
        scale: Inverse temperature of the softmax.
        symmetric: Whether each positive has to find its anchor too; the two directions are
            averaged.

    Returns:
        Mean cross-entropy, a scalar.

    Sources: Henderson et al. 2017 (arXiv:1705.00652) section 4.4; scale and cosine as
    sentence-transformers' MultipleNegativesRankingLoss.
    """
    scores = normalize(anchors, dim=-1) @ normalize(candidates, dim=-1).T * scale  # (batch, n)
    own = torch.arange(len(anchors), device=anchors.device)
    forth = cross_entropy(scores, own)
    if not symmetric:
        return forth
    return (forth + cross_entropy(scores[:, : len(anchors)].T, own)) / 2
