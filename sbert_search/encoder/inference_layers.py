"""Faster linear layers for encoders that only infer.

On a CPU the weights are stored once in oneDNN's blocked layout, and bias and activation are
computed in the same pass as the product. On CUDA, cuBLASLt computes bias and activation in one pass
with the product. docs/decisions.md: "Weights in oneDNN's layout for inference".
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from sbert_search.encoder.block import Block
from sbert_search.encoder.encoder import Encoder
from sbert_search.runtime.device import has_onednn

_FUSED = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}


class PackedLinear(nn.Module):
    """A linear layer with an optional activation, over weights in oneDNN's layout."""

    def __init__(self, linear: nn.Linear, activation: str | None = None) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._fused, self._variant = _FUSED[activation] if activation else ("none", "")

    def forward(self, states: Tensor) -> Tensor:
        """Transform (rows, inputs) to (rows, outputs), without gradients."""
        outputs = torch.ops.mkldnn._linear_pointwise(
            states, self._weight, self._bias, self._fused, [], self._variant
        )
        return cast(Tensor, outputs)


class FusedLinear(nn.Module):
    """A linear layer and its activation in one pass of cuBLASLt, for half precision.

    cuBLASLt has only the tanh form of GELU; it also serves models with the exact form, as in
    torch's fast path of `TransformerEncoderLayer`. For all-MiniLM-L6-v2 the cosine between both
    results is 1 - 2e-6; half precision alone costs 1e-4.
    """

    def __init__(self, linear: nn.Linear, activation: str) -> None:
        super().__init__()
        self._linear, self._gelu = linear, activation != "relu"

    def forward(self, states: Tensor) -> Tensor:
        """Transform (rows, inputs) to (rows, outputs), without gradients."""
        weight, bias = self._linear.weight, self._linear.bias
        return torch._addmm_activation(bias, states, weight.t(), use_gelu=self._gelu)


def freeze(encoder: Encoder) -> Encoder:
    """Replace the layers of an encoder by the fastest ones for its device and dtype.

    This changes the encoder in place and cannot be undone: it can encode, but no longer be trained,
    moved or saved. Without a faster layer (mps, float32 on CUDA, float16 on a CPU), only gradients
    are turned off.

    Returns:
        The same encoder.
    """
    encoder.eval().requires_grad_(False)
    weight, activation = encoder.embeddings.word.weight, encoder.config.activation
    on_cuda = _has_cublaslt(weight)
    if not on_cuda and (weight.device.type != "cpu" or not has_onednn(weight.dtype)):
        return encoder
    encoder.frozen = True
    for block in cast(list[Block], encoder.blocks):
        up = FusedLinear if on_cuda else PackedLinear
        block.add_module("up", up(block.up, activation))
        block.activation = nn.Identity()
        if not on_cuda:
            _pack(block, "down")
            _pack(block.attention, "qkv")
            _pack(block.attention, "output")
    return encoder


def _pack(parent: nn.Module, name: str) -> None:
    parent.add_module(name, PackedLinear(cast(nn.Linear, getattr(parent, name))))


def _has_cublaslt(weight: Tensor) -> bool:
    return weight.is_cuda and weight.dtype != torch.float32
