"""The linear layers of an encoder in training, computed on a CPU by oneDNN.

In float32, torch multiplies with MKL; on CPUs with AVX-512, oneDNN is faster. In bfloat16, torch
uses oneDNN too, but in a slower way: it does not convert the weight to oneDNN's blocked memory
layout, and it copies the bias to all rows. docs/decisions.md: "oneDNN multiplies in float32 during
training".
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.base.device import has_onednn

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
