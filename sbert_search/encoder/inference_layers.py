"""Faster linear layers for encoders that are used for inference only.

On a CPU, the weights are converted once to oneDNN's blocked memory layout, and oneDNN computes bias
and activation in the same pass as the product. On CUDA, cuBLASLt computes product, bias and
activation in one pass. docs/decisions.md: "Weights in oneDNN's layout for inference".
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from sbert_search.base.device import has_onednn
from sbert_search.encoder.block import Block
from sbert_search.encoder.encoder import Encoder

# oneDNN's name and variant of each activation in its fused linear layer.
FUSED = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}


class PackedLinear(nn.Module):
    """A linear layer with an optional activation, with weights in oneDNN's memory layout."""

    def __init__(self, linear: nn.Linear, activation: str | None = None) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._fused, self._variant = FUSED[activation] if activation else ("none", "")

    def forward(self, states: Tensor) -> Tensor:
        """Transform (rows, inputs) to (rows, outputs), without gradients."""
        outputs = torch.ops.mkldnn._linear_pointwise(
            states, self._weight, self._bias, self._fused, [], self._variant
        )
        return cast(Tensor, outputs)


class FusedLinear(nn.Module):
    """A linear layer and its activation in one pass of cuBLASLt, for half precision.

    cuBLASLt has only the tanh approximation of GELU. This layer uses the approximation also for
    models with the exact GELU, as torch's `TransformerEncoderLayer` does in its fast path. With
    all-MiniLM-L6-v2, the cosine between an embedding with the exact GELU and the same embedding
    with the approximation is 1 - 2e-6. Half precision changes an embedding more: its cosine with
    the embedding in fp32 is 1 - 1e-4.
    """

    def __init__(self, linear: nn.Linear, activation: str) -> None:
        super().__init__()
        self._linear, self._gelu = linear, activation != "relu"

    def forward(self, states: Tensor) -> Tensor:
        """Transform (rows, inputs) to (rows, outputs), without gradients."""
        weight, bias = self._linear.weight, self._linear.bias
        return torch._addmm_activation(bias, states, weight.t(), use_gelu=self._gelu)


def freeze(encoder: Encoder) -> Encoder:
    """Replace linear layers of an encoder by faster ones for its device and dtype, in place.

    The encoder is also set to evaluation mode, and its gradients are turned off. If there is no
    faster layer (mps, float32 on CUDA, types that oneDNN does not support on a CPU), nothing else
    is changed. An encoder with replaced layers can no longer be trained, moved or saved.

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
        if on_cuda:
            block.add_module("up", FusedLinear(block.up, activation))
            block.activation = nn.Identity()
        else:
            pack(block, activation)
    return encoder


def pack(block: Block, activation: str) -> Block:
    """Convert the weights of one block on a CPU to oneDNN's layout, in place; see `freeze`."""
    block.add_module("up", PackedLinear(block.up, activation))
    block.activation = nn.Identity()
    _pack(block, "down")
    _pack(block.attention, "qkv")
    _pack(block.attention, "output")
    return block


def _pack(parent: nn.Module, name: str) -> None:
    parent.add_module(name, PackedLinear(cast(nn.Linear, getattr(parent, name))))


def _has_cublaslt(weight: Tensor) -> bool:
    return weight.is_cuda and weight.dtype != torch.float32
