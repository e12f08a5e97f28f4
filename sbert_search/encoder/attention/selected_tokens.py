"""The last block for some rows of a batch only: those whose states somebody reads.

Keys and values are needed of every token; queries, and all that follows them, of these rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sbert_search.encoder.dropout import dropout
from sbert_search.encoder.packed import PackedTokens


@dataclass(frozen=True, eq=False)
class AskedRows:
    """Rows of a batch, text by text.

    Attributes:
        rows: Rising, int64 (n,).
        texts: Text of each, int64 (n,).
        counts: Rows of each text, int64 (batch,).
    """

    rows: Tensor
    texts: Tensor
    counts: Tensor

    @classmethod
    def of(cls, rows: Tensor, tokens: PackedTokens) -> AskedRows:
        """Describe rows, which must rise."""
        texts = tokens.text_of_row[rows]
        counts = texts.new_zeros(len(tokens.lengths))  # bincount would wait for the device
        return cls(rows, texts, counts.index_add_(0, texts, torch.ones_like(texts)))

    @property
    def starts(self) -> Tensor:
        """First place of each text among the rows, then their number, int32 (batch + 1,)."""
        return F.pad(self.counts.cumsum(0), (1, 0)).to(torch.int32)


def asked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tokens: PackedTokens,
    asked: AskedRows,
    *,
    scale: float,
    share: float,
    varlen: bool,
) -> Tensor:
    """Attend from some rows to all tokens of their texts.

    Args:
        query: Of the rows asked for, (n, heads, head_dim).
        key: Of every token, (total, heads, head_dim).
        value: Of every token, as `key`.
        tokens: The batch, texts of equal length side by side.
        asked: The rows.
        scale: Factor on the scores.
        share: Of the probabilities that are set to 0.
        varlen: Whether CUDA's kernel for texts of any lengths can be used.

    Returns:
        Float (n, hidden).
    """
    longest = max(tokens.lengths)
    if varlen:
        ends = (asked.starts, tokens.starts, longest, longest)  # no text asks from more rows
        mixed = torch.ops.aten._flash_attention_forward(
            query, key, value, *ends, share, False, False, scale=scale
        )[0]
        return cast(Tensor, mixed.flatten(1))
    most = int(asked.counts.max())
    places = torch.arange(len(asked.rows), device=query.device)
    places = places - asked.starts[:-1].long()[asked.texts]
    padded = query.new_zeros(len(tokens.lengths), most, *query.shape[1:])
    padded[asked.texts, places] = query
    texts = [run.texts for run in tokens.runs]
    sizes = [run.texts * run.length for run in tokens.runs]
    parts = (torch.split(padded, texts), torch.split(key, sizes), torch.split(value, sizes))
    outputs = []
    for queries, *both in zip(*parts, strict=True):
        shape = (len(queries), -1, *key.shape[1:])
        keys, values = (part.view(shape).transpose(1, 2) for part in both)
        outputs.append(_attend(queries.transpose(1, 2), keys, values, scale, share))
    mixed = torch.cat(outputs).transpose(1, 2)  # (batch, most, heads, head_dim)
    return mixed[asked.texts, places].flatten(1)


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, share: float) -> Tensor:
    if not share:
        return F.scaled_dot_product_attention(query, key, value, scale=scale)
    scores = (query * scale) @ key.transpose(-1, -2)
    probs = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    return dropout(probs, share, training=True) @ value
