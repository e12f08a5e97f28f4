"""Distances between embeddings: of equal rows of two matrices, or of all pairs of rows of one."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

Distance = Literal["cosine", "euclidean"]


def distances(x: Tensor, y: Tensor, kind: Distance) -> Tensor:
    """Distance of row i of ``x`` to row i of ``y``, for each i.

    Args:
        x: Float (batch, dim).
        y: Float (batch, dim).
        kind: ``cosine`` is 1 - cosine similarity, from 0 to 2.

    Returns:
        Float (batch,). If two rows are equal, the gradient of their Euclidean distance is 0, not
        NaN.
    """
    if kind == "cosine":
        return 1 - cosine_similarity(x, y, dim=-1)
    euclidean: Tensor = torch.linalg.vector_norm(x - y, dim=-1)
    return euclidean


def all_distances(x: Tensor, kind: Distance) -> Tensor:
    """Distances of all pairs of rows of a matrix (batch, dim); float (batch, batch)."""
    if kind == "cosine":
        unit = normalize(x, dim=-1)
        return 1 - unit @ unit.T
    # A matrix product would be faster, but rounding would make small distances inexact.
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
