"""Training on a CPU: linear layers by oneDNN, dropout, and attention with dropout.

In float32, torch multiplies with MKL; on CPUs with AVX-512, oneDNN is faster. In bfloat16, torch
uses oneDNN too, but in a slower way: it does not convert the weight to oneDNN's blocked memory
layout, and it copies the bias to all rows.

torch has no fused CPU kernel with dropout. If autograd derives the gradient, each group of texts of
equal length takes some forty small operations and copies. oneDNN also compiles a kernel for every
new shape. In this module, texts of similar length are padded to one length, so that there are fewer
groups and shapes.

Decision: docs/decisions.md, "Attention with dropout has its own gradient on a CPU".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.base.device import has_onednn
from sbert_search.models.encoder.packed import PackedTokens, Window

_HAS_ONEDNN = torch._C._has_mkldnn and torch.backends.cpu.get_cpu_capability() == "AVX512"
# A bf16 weight is converted to oneDNN's layout only if it has at most this many times as many rows
# as the states. For a larger weight, the conversion takes more time than it saves.
_MOST_WEIGHT = 8


class Linear(nn.Linear):
    """`torch.nn.Linear` that trains faster on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Transform (rows, in_features) to (rows, out_features)."""
        return linear(input, self.weight, self.bias)


def linear(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``states @ weight.T + bias``, as `torch.nn.functional.linear` does."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    if not _trains_in_onednn(states, weight, dtype):
        return F.linear(states, weight, bias)
    if dtype != torch.float32:
        states, weight = states.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    return cast(Tensor, _Product.apply(states, weight, bias))  # type: ignore[no-untyped-call]


def _trains_in_onednn(states: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    training = torch.is_grad_enabled() and states.requires_grad and states.ndim == 2
    supported = states.dtype in (torch.float32, dtype) and weight.dtype == torch.float32
    available = states.device.type == "cpu" and _HAS_ONEDNN and has_onednn(dtype)
    pays = dtype == torch.float32 or len(weight) <= _MOST_WEIGHT * len(states)
    return available and training and supported and pays and not torch.compiler.is_compiling()


class _Product(torch.autograd.Function):
    """A linear layer: oneDNN computes the output and, in float32, the gradient of the input."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        return _product(states, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        states, weight = ctx.saved_tensors
        grad_output = grad_output.contiguous()
        if weight.dtype == torch.float32:
            grad_states = _product(grad_output, weight.t().contiguous(), None)
        else:
            grad_states = grad_output @ weight
        grad_bias = grad_output.sum(0) if ctx.needs_input_grad[2] else None
        return grad_states, grad_output.t() @ states, grad_bias


def _product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # This private operator belongs to torch.compile's CPU backend. No public function of torch
    # calls oneDNN for these products.
    product = torch.ops.mkldnn._linear_pointwise
    return cast(Tensor, product(states.contiguous(), weight.contiguous(), bias, "none", [], ""))


_LOWEST, _VALUES = -(2**15), 2**16  # lowest value, and number of values, of an int16


def dropout(states: Tensor, p: float) -> Tensor:
    """Set elements to 0 with probability p and scale the others, so that the mean stays the same.

    On a CPU, p, which is below 1, is rounded to a multiple of 1/65,536.

    Source: Srivastava et al. 2014, Dropout, JMLR 15.
    """
    if not p:
        return states
    if states.device.type != "cpu":
        return F.dropout(states, p)
    return states * draw_factors(states.shape, p, states.dtype)


def draw_factors(shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
    """Draw the factors of dropout on a CPU: 0 with probability p, otherwise 1 / (1 - p).

    torch draws one random number for each element. Here an SFC64 generator draws 64-bit numbers,
    and each number serves four elements, with 16 bits for each. The seed comes from torch's
    generator.
    """
    size = math.prod(shape)
    # An element is kept with a probability of at least 1/65,536, even for p = 0.999995.
    dropped = min(round(p * _VALUES), _VALUES - 1)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    draws = np.random.SFC64(seed).random_raw(-(-size // 4)).view(np.int16)
    # The comparison is in place and keeps the type int16. A comparison that returns bool would not
    # use vector instructions.
    kept = torch.from_numpy(draws)[:size].ge_(_LOWEST + dropped)  # int16, 1 or 0
    return kept.to(dtype).mul_(_VALUES / (_VALUES - dropped)).view(tuple(shape))


_BF16_VECTOR, _FP32_VECTOR = 32, 16  # elements in a vector register of 512 bits


def dropout_attention(
    query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens, *, scale: float, p: float
) -> Tensor:
    """Compute attention within each text on a CPU, with dropout of the probabilities.

    Query, key and value are float (total, heads, head_dim), the result float (total, hidden). ``p``
    is above 0. Adjacent texts of similar length are computed together.
    """
    context = _Attention.apply(query, key, value, tokens.windows, scale, p)  # type: ignore[no-untyped-call]
    return cast(Tensor, context)


class _Attention(torch.autograd.Function):
    """Attention with dropout over windows of adjacent texts, which are padded to one length."""

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
    dtype = _softmax_type(probs)
    wide = torch._softmax_backward_data(grad_probs.to(dtype), probs.to(dtype), -1, dtype)
    return wide.to(probs.dtype)


def _spread(part: Tensor, window: Window) -> Tensor:
    """Copy a window of ``part`` (total, heads, head_dim) to (texts x heads, length, head_dim)."""
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
