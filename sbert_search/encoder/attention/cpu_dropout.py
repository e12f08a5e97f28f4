"""Attention with dropout for training on a CPU, with a backward pass written by hand.

torch has no fused CPU kernel with dropout. If autograd derives the gradient, each group of texts of
equal length takes some forty small operations and copies. oneDNN also compiles a kernel for every
new shape. In this module, texts of similar length are padded to one length, so that there are fewer
groups and shapes.

Decision: docs/decisions.md, "Attention with dropout has its own gradient on a CPU".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from sbert_search.encoder.dropout import draw_factors
from sbert_search.encoder.packed import PackedTokens, Window

_BF16_VECTOR, _FP32_VECTOR = 32, 16  # elements in a vector register of 512 bits


def dropout_attention(
    query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens, *, scale: float, p: float
) -> Tensor:
    """Compute attention within each text, with dropout of the probabilities.

    Args:
        query: Query of every token, float (total, heads, head_dim), on a CPU.
        key: Key of every token, of the same shape.
        value: Value of every token, of the same shape.
        tokens: The batch. Adjacent texts of similar length are computed together.
        scale: Factor on the scores.
        p: Probability of setting an attention probability to 0; above 0.

    Returns:
        Float (total, hidden).
    """
    context = _Attention.apply(query, key, value, tokens.windows, scale, p)  # type: ignore[no-untyped-call]
    return cast(Tensor, context)


class _Attention(torch.autograd.Function):
    """Attention with dropout over windows of adjacent texts, which are padded to one length.

    The forward pass saves queries, keys, values, probabilities and dropout factors for the
    backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        windows: Sequence[Window],
        scale: float,
        p: float,
    ) -> Tensor:
        context = torch.empty_like(query, memory_format=torch.contiguous_format)
        saved: list[Tensor] = []
        for window in windows:
            window_query, window_key, window_value = (
                _spread(part, window) for part in (query, key, value)
            )
            bias = query.new_zeros(1, 1, 1)
            if window.bias is not None:
                bias = window.bias.to(query.dtype).repeat_interleave(query.shape[1], 0)
            beta = 0 if window.bias is None else 1
            scores = torch.baddbmm(bias, window_query, window_key.mT, beta=beta, alpha=scale)
            probs = scores.softmax(dim=-1, dtype=_softmax_type(scores)).to(scores.dtype)
            factors = draw_factors(probs.shape, p, probs.dtype)
            _gather(torch.bmm(probs * factors, window_value), window, context)
            saved += window_query, window_key, window_value, probs, factors
        ctx.save_for_backward(*saved)
        ctx.windows, ctx.scale = windows, scale
        return context.flatten(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_context: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        shape = (len(grad_context), -1, saved[0].shape[-1])
        grad_context = grad_context.view(shape)
        grad_query, grad_key, grad_value = (torch.empty_like(grad_context) for _ in range(3))
        for index, window in enumerate(ctx.windows):
            query, key, value, probs, factors = saved[5 * index : 5 * index + 5]
            grad_window = _spread(grad_context, window)
            _gather(torch.bmm((probs * factors).mT, grad_window), window, grad_value)
            grad_probs = torch.bmm(grad_window, value.mT).mul_(factors)
            grad_scores = _softmax_gradient(grad_probs, probs).mul_(ctx.scale)
            _gather(torch.bmm(grad_scores, key), window, grad_query)
            _gather(torch.bmm(grad_scores.mT, query), window, grad_key)
        return grad_query, grad_key, grad_value, None, None, None


def _softmax_type(values: Tensor) -> torch.dtype:
    """Return the type in which torch's softmax over the last dimension is fast.

    torch's softmax in bfloat16 is slow over rows that do not fill vector registers of 32 elements.
    Such rows are computed in float32, unless they are too short to fill a register of 16 float32
    elements. The results are equal, since the softmax in bfloat16 computes in float32 internally.
    """
    length = values.shape[-1]
    fills = length % _BF16_VECTOR == 0 or length < _FP32_VECTOR
    return values.dtype if fills else torch.float32


def _softmax_gradient(grad_probs: Tensor, probs: Tensor) -> Tensor:
    """Return the gradient of the scores from the gradient of their softmax."""
    dtype = _softmax_type(probs)
    wide = torch._softmax_backward_data(grad_probs.to(dtype), probs.to(dtype), -1, dtype)
    return wide.to(probs.dtype)


def _spread(part: Tensor, window: Window) -> Tensor:
    """Copy a window of ``part`` to (texts x heads, length, head_dim), padded by 0.

    Args:
        part: Queries, keys, values or a gradient of all tokens, (total, heads, head_dim).
        window: The rows of the window and the places of its padding.
    """
    part = part[window.rows]
    if window.padded_rows is not None:
        padded = part.new_zeros(window.texts * window.length, *part.shape[1:])
        part = padded.index_copy_(0, window.padded_rows, part)
    return part.view(window.texts, window.length, *part.shape[1:]).transpose(1, 2).flatten(0, 1)


def _gather(part: Tensor, window: Window, whole: Tensor) -> None:
    """Undo `_spread`: copy ``part`` to the window's rows of ``whole``, (total, heads, head_dim)."""
    part = part.view(window.texts, -1, *part.shape[1:]).transpose(1, 2)
    rows = whole[window.rows]
    if window.padded_rows is None:
        rows.view(part.shape).copy_(part)
    else:
        torch.index_select(part.flatten(0, 1), 0, window.padded_rows, out=rows)
