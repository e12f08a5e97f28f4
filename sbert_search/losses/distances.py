"""How far apart embeddings are: row by row, or every row from every other."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

Distance = Literal["cosine", "euclidean"]


def distances(x: Tensor, y: Tensor, kind: Distance) -> Tensor:
    """Measure each row of one matrix from the same row of another.

    Args:
        x: Float (batch, dim).
        y: Float (batch, dim).
        kind: ``cosine`` is 1 - cos, from 0 to 2.

    Returns:
        Float (batch,). Where two rows are equal the Euclidean gradient is 0, not NaN.
    """
    if kind == "cosine":
        return 1 - cosine_similarity(x, y, dim=-1)
    apart: Tensor = torch.linalg.vector_norm(x - y, dim=-1)
    return apart


def all_distances(x: Tensor, kind: Distance) -> Tensor:
    """Measure every row of a matrix (batch, dim) from every other; float (batch, batch)."""
    if kind == "cosine":
        unit = normalize(x, dim=-1)
        return 1 - unit @ unit.T
    # The product form is faster and loses the digits of small distances.
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
