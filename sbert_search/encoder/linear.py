"""The linear layers of an encoder in training: on a CPU by oneDNN where torch would take MKL.

On AVX-512 oneDNN multiplies in float32 at 97 to 101 GFLOP/s a core where MKL reaches 84 (2,048 rows
through a BERT of 6 x 384, AMD Zen 4); torch takes it by itself for bfloat16 only.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_HAS_ONEDNN = torch._C._has_mkldnn and torch.backends.cpu.get_cpu_capability() == "AVX512"


class Linear(nn.Linear):
    """`torch.nn.Linear` that trains faster on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Transform (rows, in_features) to (rows, out_features)."""
        return linear(input, self.weight, self.bias)


def linear(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``states @ weight.T + bias``, as `torch.nn.functional.linear` does."""
    if not _trains_in_onednn(states, weight):
        return F.linear(states, weight, bias)
    return cast(Tensor, _Product.apply(states, weight, bias))  # type: ignore[no-untyped-call]


def _trains_in_onednn(states: Tensor, weight: Tensor) -> bool:
    training = torch.is_grad_enabled() and states.requires_grad and states.ndim == 2
    plain = states.dtype == weight.dtype == torch.float32 and states.device.type == "cpu"
    mixed = torch.is_autocast_enabled("cpu")
    return _HAS_ONEDNN and training and plain and not mixed and not torch.compiler.is_compiling()


class _Product(torch.autograd.Function):
    """A linear layer whose forward product and gradient of the states are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        return _product(states, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        states, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        to_states = _product(gradient, weight.t().contiguous(), None)
        to_bias = gradient.sum(0) if ctx.needs_input_grad[2] else None
        return to_states, gradient.t() @ states, to_bias


def _product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = torch.ops.mkldnn._linear_pointwise
    return cast(Tensor, product(states.contiguous(), weight.contiguous(), bias, "none", [], ""))
