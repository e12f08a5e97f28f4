"""Attention within packed texts of different lengths, by torch's FlashAttention kernel on CUDA."""

from __future__ import annotations

from functools import cache
from typing import cast

import torch
from torch import Tensor


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
    """Compute attention within each text of a packed batch, which has no padding.

    Args:
        query: Float (n_queries, heads, head_dim).
        key: Float (total, heads, head_dim).
        value: Float (total, heads, head_dim).
        query_starts: Index of the first query of each text, then n_queries, int32 (batch + 1,).
        key_starts: Index of the first key of each text, then the total, int32 (batch + 1,).
        longest: Upper bound of the number of queries, and of keys, in one text.
        scale: Factor on the scores.
        p: Probability of setting an attention probability to 0.
        causal: Whether a token attends only to itself and to tokens on its left.

    Returns:
        Float (n_queries, hidden).

    Source: Dao 2023, FlashAttention-2 (arXiv:2307.08691).
    """
    # The private operator takes dropout; its public wrapper, torch.nn.attention.varlen, does not.
    # docs/decisions.md: "The CUDA kernel is called as `aten::_flash_attention_forward`".
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
