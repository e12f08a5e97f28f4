"""Encoders that only infer: weights and activations as the fastest matrix product takes them.

On a CPU oneDNN multiplies by weights in a blocked layout of its own, with bias and activation in
the same pass: 12 to 15 % faster than `torch.nn.Linear` over long batches and up to twice as fast
for one short text (AVX-512, float32). On CUDA cuBLASLt has bias and activation in one pass too. See
docs/decisions.md for the figures.
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
    """A linear layer, with an activation if asked for, over weights in oneDNN's layout."""

    def __init__(self, linear: nn.Linear, activation: str | None = None) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._fused, self._variant = _FUSED[activation] if activation else ("none", "")

    def forward(self, states: Tensor) -> Tensor:
        """Transform (rows, inputs) to (rows, outputs), without gradients."""
        mixed = torch.ops.mkldnn._linear_pointwise(
            states, self._weight, self._bias, self._fused, [], self._variant
        )
        return cast(Tensor, mixed)


class FusedLinear(nn.Module):
    """A linear layer and its activation in one pass of cuBLASLt, for half precision.

    GELU is the tanh form there, also for models with the exact one, as in torch's own fast path of
    `TransformerEncoderLayer`. It moves vectors of all-MiniLM-L6-v2 by a cosine of 2e-6, half
    precision by 1e-4.
    """

    def __init__(self, linear: nn.Linear, activation: str) -> None:
        super().__init__()
        self._linear, self._gelu = linear, activation != "relu"

    def forward(self, states: Tensor) -> Tensor:
        """Transform (rows, inputs) to (rows, outputs), without gradients."""
        weight, bias = self._linear.weight, self._linear.bias
        return torch._addmm_activation(bias, states, weight.t(), use_gelu=self._gelu)


def freeze(encoder: Encoder) -> Encoder:
    """Make an encoder as fast as it can be on the device and in the type it is in, for good.

    The encoder itself is changed: it can encode, but no longer be trained, moved or saved. Where
    nothing helps (mps, float32 on CUDA, float16 on a CPU), it only loses its gradients.

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


def _pack(owner: nn.Module, name: str) -> None:
    owner.add_module(name, PackedLinear(cast(nn.Linear, getattr(owner, name))))


def _has_cublaslt(weight: Tensor) -> bool:
    return weight.is_cuda and weight.dtype != torch.float32
