"""A bi-encoder over padded batches: the form that a graph of fixed operations can have.

Embeddings, blocks and head are those of the packed model, with the same parameters; only attention
and pooling, which look across the tokens of a text, are written again with a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.encoder.attention.self_attention import Attention
from sbert_search.encoder.block import Block
from sbert_search.encoder.packed import PackedTokens
from sbert_search.errors import ModelError
from sbert_search.models.bi_encoder import BiEncoder


class PaddedTokens(NamedTuple):
    """A padded batch, with what embeddings and attention read of a packed one.

    Attributes:
        input_ids: Token ids, int64 (batch, seq_len).
        positions: Position of each column, int64 (seq_len,).
        bias: Added to attention scores, float (batch, 1, 1, seq_len): 0, or very low for padding.
        token_type_ids: None: every text is one segment.
    """

    input_ids: Tensor
    positions: Tensor
    bias: Tensor
    token_type_ids: None = None


class PaddedAttention(nn.Module):
    """The attention of one block, over (batch, seq_len, hidden) and without padding's share."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self, states: Tensor, tokens: PaddedTokens, **_: Any
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Mix the states of each text; returns no probabilities."""
        config = self.attention.config
        shape = (*states.shape[:2], config.heads, config.head_dim)
        projected = self.attention.project(states)
        query, key, value = (part.view(shape).transpose(1, 2) for part in projected)
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=tokens.bias, scale=config.head_dim**-0.5
        )
        return self.attention.output(mixed.transpose(1, 2).flatten(2)), ()


class PaddedBiEncoder(nn.Module):
    """The same vectors as a `BiEncoder`, from ids padded on the right.

    The model given is changed for good: from then on its blocks take padded batches only.

    Raises:
        ModelError: Its attention is not plain, or its pooling needs probabilities.
    """

    def __init__(self, model: BiEncoder) -> None:
        super().__init__()
        config = model.encoder.config
        if config.attention_terms != ("c2c",) or config.causal:
            raise ModelError(
                f"The engine onnx computes no attention of type {config.layout!r}; use --engine "
                "native."
            )
        if unknown := set(model.pooling) - set(_POOLINGS):
            raise ModelError(
                f"The engine onnx computes no pooling {', '.join(unknown)}; use --engine native."
            )
        self.encoder, self.head, self.pooling = model.encoder, model.head, model.pooling
        for block in cast(list[Block], self.encoder.blocks):
            block.attention = cast(Attention, PaddedAttention(block.attention))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode a batch.

        Args:
            input_ids: Token ids, any id for padding, int64 (batch, seq_len).
            attention_mask: 1 for a real token, 0 for padding, int64 (batch, seq_len).

        Returns:
            Float32 (batch, dim), not truncated.
        """
        weights = attention_mask.unsqueeze(-1).float()
        bias = (1.0 - weights).mT.unsqueeze(1) * torch.finfo(torch.float32).min
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        tokens = cast(PackedTokens, PaddedTokens(input_ids, positions, bias))
        states = self.encoder.embeddings(tokens)
        for index in self.encoder.config.block_order:
            states, _ = self.encoder.blocks[index](states, tokens)
        parts = [_POOLINGS[mode](states, weights) for mode in self.pooling]
        embeddings: Tensor = self.head(torch.cat(parts, dim=-1))
        return embeddings


def _mean(states: Tensor, weights: Tensor) -> Tensor:
    return (states * weights).sum(dim=1) / weights.sum(dim=1)


def _max(states: Tensor, weights: Tensor) -> Tensor:
    return states.masked_fill(weights == 0, float("-inf")).amax(dim=1)


# As `pooling.POOLINGS`, from (batch, seq_len, hidden) and weights (batch, seq_len, 1), 0 or 1.
_POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda states, weights: states[:, 0],
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": lambda states, weights: (
        (states * weights).sum(dim=1) / weights.sum(dim=1).sqrt()
    ),
    "weightedmean": lambda states, weights: _mean(states, weights * weights.cumsum(dim=1)),
    "lasttoken": lambda states, weights: (
        states * (weights.cumsum(dim=1) == weights.sum(dim=1, keepdim=True)) * weights
    ).sum(dim=1),
}
