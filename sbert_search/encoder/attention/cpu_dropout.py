"""Attention that drops probabilities, for training on a CPU: large products and their gradients.

No fused kernel drops on a CPU. Written out for autograd, each run of equally long texts costs some
forty small operations and copies, and oneDNN makes a kernel for every new shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from sbert_search.encoder.dropout import draw_factors
from sbert_search.encoder.packed import PackedTokens, Window


def dropped_attention(
    query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens, *, scale: float, share: float
) -> Tensor:
    """Attend within each text, with dropout of the probabilities.

    Args:
        query: Of every token, float (total, heads, head_dim), on a CPU.
        key: As `query`.
        value: As `query`.
        tokens: The batch they belong to, texts of equal length side by side.
        scale: Factor on the scores.
        share: Of the probabilities that are set to 0, above 0.

    Returns:
        Float (total, hidden).
    """
    mixed = _Attention.apply(query, key, value, tokens.windows, scale, share)  # type: ignore[no-untyped-call]
    return cast(Tensor, mixed)


class _Attention(torch.autograd.Function):
    """Of each window, queries, keys, values, probabilities and factors are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        windows: Sequence[Window],
        scale: float,
        share: float,
    ) -> Tensor:
        mixed = torch.empty_like(query, memory_format=torch.contiguous_format)
        kept: list[Tensor] = []
        for window in windows:
            some_query, some_key, some_value = (
                _spread(part, window) for part in (query, key, value)
            )
            bias = query.new_zeros(1, 1, 1)
            if window.bias is not None:
                bias = window.bias.to(query.dtype).repeat_interleave(query.shape[1], 0)
            beta = 0 if window.bias is None else 1
            scores = torch.baddbmm(bias, some_query, some_key.mT, beta=beta, alpha=scale)
            probs = scores.softmax(dim=-1)
            factors = draw_factors(probs.shape, share, probs.dtype)
            _gather(torch.bmm(probs * factors, some_value), window, mixed)
            kept += some_query, some_key, some_value, probs, factors
        ctx.save_for_backward(*kept)
        ctx.windows, ctx.scale = windows, scale
        return mixed.flatten(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors
        shape = (len(gradient), -1, kept[0].shape[-1])
        gradient = gradient.view(shape)
        of_query, of_key, of_value = (torch.empty_like(gradient) for _ in range(3))
        for number, window in enumerate(ctx.windows):
            query, key, value, probs, factors = kept[5 * number : 5 * number + 5]
            some = _spread(gradient, window)
            _gather(torch.bmm((probs * factors).mT, some), window, of_value)
            of_probs = torch.bmm(some, value.mT).mul_(factors)
            of_scores = torch._softmax_backward_data(of_probs, probs, -1, probs.dtype)
            of_scores.mul_(ctx.scale)
            _gather(torch.bmm(of_scores, key), window, of_query)
            _gather(torch.bmm(of_scores.mT, query), window, of_key)
        return of_query, of_key, of_value, None, None, None


def _spread(part: Tensor, window: Window) -> Tensor:
    """(total, heads, head_dim) to a window's (texts x heads, length, head_dim), padded by 0."""
    part = part[window.rows]
    if window.places is not None:
        padded = part.new_zeros(window.texts * window.length, *part.shape[1:])
        part = padded.index_copy_(0, window.places, part)
    return part.view(window.texts, window.length, *part.shape[1:]).transpose(1, 2).flatten(0, 1)


def _gather(part: Tensor, window: Window, whole: Tensor) -> None:
    """Undo `_spread`, into the window's rows of a (total, heads, head_dim)."""
    part = part.view(window.texts, -1, *part.shape[1:]).transpose(1, 2)
    rows = whole[window.rows]
    if window.places is None:
        rows.view(part.shape).copy_(part)
    else:
        torch.index_select(part.flatten(0, 1), 0, window.places, out=rows)
