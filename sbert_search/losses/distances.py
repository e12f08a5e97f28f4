"""Distances between embeddings: row by row, or of all pairs of rows."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

Distance = Literal["cosine", "euclidean"]


def distances(x: Tensor, y: Tensor, kind: Distance) -> Tensor:
    """Distance of each row of one matrix to the same row of another.

    Args:
        x: Float (batch, dim).
        y: Float (batch, dim).
        kind: ``cosine`` is 1 - cos, from 0 to 2.

    Returns:
        Float (batch,). For two equal rows the gradient of the Euclidean distance is 0, not NaN.
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
