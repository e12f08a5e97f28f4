"""Relative positions in attention scores: DeBERTa's disentangled terms."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class RelativeHeads(NamedTuple):
    """Relative positions as keys and as queries, each (2 x reach, heads, head_dim) or None.

    Row ``reach + d`` stands for the distance ``d`` = query position - key position; distances
    beyond the reach share the outermost row of their side.
    """

    key: Tensor | None
    query: Tensor | None

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Content-to-position plus position-to-content scores, (texts, heads, length, length).

        Args:
            query: Scaled queries, (texts, heads, length, head_dim).
            key: Scaled keys, of the same shape.

        Source: He et al. 2021, DeBERTa, section 3.1, equation 4 (arXiv:2006.03654).
        """
        length = query.shape[2]
        total = query.new_zeros(())
        if self.key is not None:  # query i with distance i - j, for j ascending
            descending = _rows_by_distance(self.key, length).flip(0)
            total = total + _shift(query @ descending.permute(1, 2, 0))
        if self.query is not None:  # key j with distance i - j, for i ascending
            ascending = _rows_by_distance(self.query, length)
            total = total + _shift(key @ ascending.permute(1, 2, 0)).transpose(-1, -2)
        return total


def _rows_by_distance(table: Tensor, length: int) -> Tensor:
    """Rows for the distances 1 - length to length - 1, (2 x length - 1, heads, head_dim)."""
    reach = table.shape[0] // 2
    distances = torch.arange(1 - length, length, device=table.device)
    return table[(distances + reach).clamp(0, 2 * reach - 1)]


def _shift(scores: Tensor) -> Tensor:
    """Take column ``length - 1 - i + j`` of row i as entry (i, j), by a view instead of a gather.

    The input is (..., length, 2 x length - 1), the result (..., length, length). Padding each row
    by one column and then viewing the memory with rows one element shorter moves every row one
    column further left (Dai et al. 2019, appendix B). A gather would have a scattered gradient;
    docs/decisions.md: "DeBERTa's relative scores are a view".
    """
    length = scores.shape[-2]
    width = 2 * length - 1
    flat = F.pad(scores, (0, 1)).flatten(-2)[..., length - 1 : length - 1 + length * width]
    return flat.view(*scores.shape[:-1], width)[..., :length]
