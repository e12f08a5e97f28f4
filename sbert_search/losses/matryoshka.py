"""One loss at several lengths, so that the leading numbers of an embedding are one as well."""

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
    """Add up a loss of embeddings cut to each length and scaled to length 1.

    Args:
        loss: Of embeddings (..., d) for any d.
        embeddings: Float (..., dim).
        dims: Lengths, each at most ``dim``.
        weights: Of each length; None: 1.

    Returns:
        What the loss returns, added up.

    Source: Kusupati et al. 2022, Matryoshka Representation Learning, section 3 (arXiv:2205.13147);
    cutting and scaling as sentence-transformers' MatryoshkaLoss.
    """
    parts = [
        weight * loss(normalize(embeddings[..., :dim], dim=-1))
        for dim, weight in zip(dims, weights or [1.0] * len(dims), strict=True)
    ]
    return torch.stack(parts).sum(dim=0)
