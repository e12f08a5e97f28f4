"""Attention for selected tokens such as [CLS].

Keys and values are computed for every token of a text. Queries and the layers after attention are
computed for the selected tokens only: in the last block, the loss reads no other states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.training_layers import dropout


@dataclass(frozen=True, eq=False)
class SelectedTokens:
    """The selected tokens of a batch."""

    rows: Tensor  # of the batch, ascending, int64 (n,)
    texts: Tensor  # index of the text of each token, int64 (n,)
    counts: Tensor  # selected tokens of each text, int64 (batch,)

    @classmethod
    def of(cls, rows: Tensor, tokens: PackedTokens) -> SelectedTokens:
        """Select the tokens at some rows of a batch; the rows must be in ascending order."""
        texts = tokens.text_of_row[rows]
        # `bincount` is not used, because the CPU would have to wait for the device.
        counts = texts.new_zeros(len(tokens.lengths))
        return cls(rows, texts, counts.index_add_(0, texts, torch.ones_like(texts)))

    @property
    def starts(self) -> Tensor:
        """Index of the first selected token of each text, then n, int32 (batch + 1,)."""
        return F.pad(self.counts.cumsum(0), (1, 0)).to(torch.int32)


def selected_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tokens: PackedTokens,
    selected: SelectedTokens,
    *,
    scale: float,
    p: float,
) -> Tensor:
    """Compute attention from n selected tokens to all tokens of their texts; float (n, hidden).

    The query is float (n, heads, head_dim); key and value are float (total, heads, head_dim).
    Adjacent texts of equal length are computed together.
    """
    most = int(selected.counts.max())
    columns = torch.arange(len(selected.rows), device=query.device)
    columns = columns - selected.starts[:-1].long()[selected.texts]
    padded = query.new_zeros(len(tokens.lengths), most, *query.shape[1:])
    padded[selected.texts, columns] = query
    texts, sizes = [run.texts for run in tokens.runs], tokens.run_sizes
    parts = (torch.split(padded, texts), torch.split(key, sizes), torch.split(value, sizes))
    outputs = []
    for queries, *keys_and_values in zip(*parts, strict=True):
        shape = (len(queries), -1, *key.shape[1:])
        keys, values = (part.view(shape).transpose(1, 2) for part in keys_and_values)
        outputs.append(_attend(queries.transpose(1, 2), keys, values, scale, p))
    context = torch.cat(outputs).transpose(1, 2)  # (batch, most, heads, head_dim)
    return context[selected.texts, columns].flatten(1)


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, p: float) -> Tensor:
    if not p:
        return F.scaled_dot_product_attention(query, key, value, scale=scale)
    scores = (query * scale) @ key.transpose(-1, -2)
    probs = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    return dropout(probs, p) @ value
