"""The linear layers of an encoder in training: on a CPU by oneDNN, with weights in its own layout.

On AVX-512 oneDNN multiplies in float32 at 97 to 101 GFLOP/s a core where MKL, which torch takes,
reaches 84 (2,048 rows through a BERT of 6 x 384, AMD Zen 4). In bfloat16 torch takes oneDNN too,
but leaves the weight as it lies and copies the bias to all rows: 160 GFLOP/s a core, here 180.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.runtime.device import has_onednn

_HAS_ONEDNN = torch._C._has_mkldnn and torch.backends.cpu.get_cpu_capability() == "AVX512"
_MOST_WEIGHT = 8  # rows of a bf16 weight to one of the states; a vocabulary is not laid out anew


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
    known = states.dtype in (torch.float32, dtype) and weight.dtype == torch.float32
    here = states.device.type == "cpu" and _HAS_ONEDNN and has_onednn(dtype)
    pays = dtype == torch.float32 or len(weight) <= _MOST_WEIGHT * len(states)
    return here and training and known and pays and not torch.compiler.is_compiling()


class _Product(torch.autograd.Function):
    """A linear layer whose forward product, and in float32 that of its gradient, are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        return _product(states, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        states, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        if weight.dtype == torch.float32:
            to_states = _product(gradient, weight.t().contiguous(), None)
        else:
            to_states = gradient @ weight
        to_bias = gradient.sum(0) if ctx.needs_input_grad[2] else None
        return to_states, gradient.t() @ states, to_bias


def _product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = torch.ops.mkldnn._linear_pointwise
    return cast(Tensor, product(states.contiguous(), weight.contiguous(), bias, "none", [], ""))
