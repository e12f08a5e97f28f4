"""Multiply the output of each attention head by a number, its gate.

Source: Michel et al. 2019, Are Sixteen Heads Really Better than One?, section 2.3
(arXiv:1905.10650).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from sbert_search.models.encoder.encoder import Block, Encoder


@contextmanager
def gated(encoder: Encoder, gates: Tensor, groups: Tensor | None = None) -> Iterator[None]:
    """Multiply the outputs of heads by their gates in each forward pass inside the context.

    A block that several layers share, as in ALBERT, gets the gates of the layer that applies it. A
    mask decoder that applies the last block again, as in DeBERTa, gets the gates of the last layer.

    Args:
        encoder: An encoder that was not prepared for inference by `freeze`, which replaces layers.
        gates: Float (layers, heads); or (layers, groups, heads), with the gates of each group of
            tokens.
        groups: Group of each token of the batch, int64 (total,), in the order in which the encoder
            computes the batch, where texts of equal length are adjacent. None: ``gates`` has no
            groups.
    """
    config = encoder.config
    layers_of: list[list[int]] = [[] for _ in range(config.n_blocks)]
    for layer, block in enumerate(config.block_order):
        layers_of[block].append(layer)
    calls = [0] * config.n_blocks

    def restart(module: nn.Module, arguments: object) -> None:
        calls[:] = [0] * len(calls)

    def gate(block: int, context: Tensor) -> Tensor:
        layers = layers_of[block]
        of_layer = gates[layers[min(calls[block], len(layers) - 1)]]
        calls[block] += 1
        factor = of_layer if groups is None else of_layer[groups]
        heads = context.view(len(context), config.heads, config.head_dim)
        return (heads * factor.unsqueeze(-1)).view(context.shape)

    def hook(block: int) -> torch.utils.hooks.RemovableHandle:
        output = cast(Block, encoder.blocks[block]).attention.output
        return output.register_forward_pre_hook(lambda _, inputs: (gate(block, inputs[0]),))

    handles = [encoder.register_forward_pre_hook(restart)]
    handles += [hook(block) for block in range(config.n_blocks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
