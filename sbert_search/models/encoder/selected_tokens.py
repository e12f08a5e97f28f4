"""Attention for selected tokens such as [CLS], and by torch's FlashAttention kernel on CUDA.

Keys and values are computed for every token of a text. Queries and the layers after attention are
computed for the selected tokens only: in the last block, the loss reads no other states.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.training_layers import dropout


def has_varlen_kernel(query: Tensor) -> bool:
    """Whether `varlen_attention` supports a query's device, type and shape (..., head_dim)."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    fits = query.is_cuda and half and query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    return fits and _capability(query.device) >= (8, 0)  # Ampere


_capability = cache(torch.cuda.get_device_capability)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_starts: Tensor,
    key_starts: Tensor,
    longest: int,
    scale: float,
    p: float,
    causal: bool = False,
) -> Tensor:
    """Compute attention within each text of a packed batch; float (n_queries, hidden).

    The query is float (n_queries, heads, head_dim), key and value are float (total, heads,
    head_dim). ``query_starts`` and ``key_starts``, int32 (batch + 1,), have the index of the first
    query or key of each text, then their number. ``longest`` is an upper bound of the queries, and
    of the keys, in one text.

    Source: Dao 2023, FlashAttention-2 (arXiv:2307.08691).
    """
    # The private operator takes dropout; its public wrapper, torch.nn.attention.varlen, does not.
    context = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        query_starts,
        key_starts,
        longest,
        longest,
        p,
        causal,
        False,  # do not return the dropout mask
        scale=scale,
    )[0]
    return cast(Tensor, context.flatten(1))


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
    varlen: bool,
) -> Tensor:
    """Compute attention from n selected tokens to all tokens of their texts; float (n, hidden).

    The query is float (n, heads, head_dim); key and value are float (total, heads, head_dim). If
    not ``varlen``, adjacent texts of equal length are computed together.
    """
    if varlen:
        return varlen_attention(
            query,
            key,
            value,
            query_starts=selected.starts,
            key_starts=tokens.starts,
            longest=max(tokens.lengths),
            scale=scale,
            p=p,
        )
    most = int(selected.counts.max())
    columns = torch.arange(len(selected.rows), device=query.device)
    columns = columns - selected.starts[:-1].long()[selected.texts]
    padded = query.new_zeros(len(tokens.lengths), most, *query.shape[1:])
    padded[selected.texts, columns] = query
    texts = [run.texts for run in tokens.runs]
    sizes = [run.texts * run.length for run in tokens.runs]
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
    return dropout(probs, p, training=True) @ value
