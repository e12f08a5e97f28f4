"""Matryoshka loss, which trains embeddings to be usable if only leading dimensions are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize


def matryoshka(
    loss: Callable[[Tensor], Tensor],
    embeddings: Tensor,
    dims: Sequence[int],
    weights: Sequence[float] | None = None,
) -> Tensor:
    """Sum a loss over embeddings that are truncated to several dimensions and normalised.

    Args:
        loss: Function that maps embeddings (..., d), for any d, to a loss.
        embeddings: Float (..., dim).
        dims: Numbers of leading dimensions to keep, each at most ``dim``.
        weights: Weight of the loss for each of ``dims``; None: all 1.

    Returns:
        The weighted sum of the losses, of the shape that ``loss`` returns.

    Source: Kusupati et al. 2022, Matryoshka Representation Learning, section 3 (arXiv:2205.13147);
    truncation and normalisation as in sentence-transformers' MatryoshkaLoss.
    """
    parts = [
        weight * loss(normalize(embeddings[..., :dim], dim=-1))
        for dim, weight in zip(dims, weights or [1.0] * len(dims), strict=True)
    ]
    return torch.stack(parts).sum(dim=0)
