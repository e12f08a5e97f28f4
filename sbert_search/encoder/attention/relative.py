"""Relative positions in attention scores: DeBERTa's disentangled terms."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class RelativeHeads(NamedTuple):
    """Embeddings of relative positions, projected to keys and queries.

    Each field is a tensor (2 x reach, heads, head_dim), or None if its term is not used. Row
    ``reach + d`` belongs to the distance ``d`` = query position - key position, for
    -reach <= d < reach. Distances above this range use the last row, distances below it the first.
    """

    key: Tensor | None
    query: Tensor | None

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Sum of content-to-position and position-to-content scores, (texts, heads, len, len).

        Args:
            query: Scaled queries, (texts, heads, length, head_dim).
            key: Scaled keys, of the same shape.

        Source: He et al. 2021, DeBERTa, section 3.1, equation 4 (arXiv:2006.03654). There, the
        position-to-content term uses the distance j - i. The published code and models use i - j,
        and so does this method.
        """
        length = query.shape[2]
        total = query.new_zeros(())
        if self.key is not None:  # row i: query i times the key of distance i - j, j ascending
            descending = _rows_by_distance(self.key, length).flip(0)
            total = total + _shift(query @ descending.permute(1, 2, 0))
        if self.query is not None:  # row j: key j times the query of distance i - j, i ascending
            ascending = _rows_by_distance(self.query, length)
            total = total + _shift(key @ ascending.permute(1, 2, 0)).transpose(-1, -2)
        return total


def _rows_by_distance(table: Tensor, length: int) -> Tensor:
    """Return rows of ``table`` for all distances between two tokens of a text, in ascending order.

    The distances are 1 - length to length - 1; the result is (2 x length - 1, heads, head_dim).
    """
    reach = table.shape[0] // 2
    distances = torch.arange(1 - length, length, device=table.device)
    return table[(distances + reach).clamp(0, 2 * reach - 1)]


def _shift(scores: Tensor) -> Tensor:
    """Take column ``length - 1 - i + j`` of row i as entry (i, j), by a view instead of a gather.

    The input is (..., length, 2 x length - 1), the result (..., length, length). Each row is padded
    by one column, and the memory is viewed with rows one element shorter. Row i of the view
    therefore begins at column ``length - 1 - i`` of input row i (Dai et al. 2019, Transformer-XL,
    appendix B, arXiv:1901.02860). A gather is avoided because its gradient is a scatter.
    docs/decisions.md: "DeBERTa's relative scores are a view".
    """
    length = scores.shape[-2]
    width = 2 * length - 1
    flat = F.pad(scores, (0, 1)).flatten(-2)[..., length - 1 : length - 1 + length * width]
    return flat.view(*scores.shape[:-1], width)[..., :length]
