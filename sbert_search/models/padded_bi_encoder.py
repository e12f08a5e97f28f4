"""A bi-encoder over padded batches, for export as a graph of fixed operations (ONNX).

It shares the embeddings, blocks and head of a `BiEncoder`, which computes packed batches without
padding. Only attention and pooling combine the tokens of a text. So this module has its own code
for both, in which a mask excludes the padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.errors import ModelError
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.encoder import Block
from sbert_search.models.encoder.self_attention import Attention


class PaddedTokens(NamedTuple):
    """A padded batch, with the attributes that `Embeddings`, the input layer of the encoder, reads.

    Attributes:
        input_ids: Token ids, int64 (batch, seq_len).
        positions: Position of each token in its text, int64 (seq_len,).
        token_type_ids: Always None, since every text is one segment.
    """

    input_ids: Tensor
    positions: Tensor
    token_type_ids: None = None


class PaddedBiEncoder(nn.Module):
    """Computes embeddings from right-padded token ids, with the modules of a `BiEncoder`.

    Raises:
        ModelError: The attention has relative positions or is causal, or the pooling needs
            attention probabilities.
    """

    def __init__(self, model: BiEncoder) -> None:
        super().__init__()
        config = model.encoder.config
        if config.attention_terms != ("c2c",) or config.causal:
            raise ModelError(
                f"The engine onnx supports no attention of type {config.layout!r}; use --engine "
                "native."
            )
        if unknown := set(model.pooling) - set(_POOLINGS):
            raise ModelError(
                f"The engine onnx supports no pooling {', '.join(unknown)}; use --engine native."
            )
        self.encoder, self.head, self.pooling = model.encoder, model.head, model.pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute embeddings.

        Args:
            input_ids: Token ids, with any id as padding, int64 (batch, seq_len).
            attention_mask: 1 for a real token, 0 for padding, int64 (batch, seq_len).

        Returns:
            Float32 (batch, dim), not truncated.
        """
        weights = attention_mask.unsqueeze(-1).float()
        # Added to attention scores, float (batch, 1, 1, seq_len): 0 for a token, the lowest finite
        # value for padding. With -inf instead, the bias of a token would be 0 * -inf, which is NaN.
        bias = (1.0 - weights).mT.unsqueeze(1) * torch.finfo(torch.float32).min
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        states = self.encoder.embeddings(PaddedTokens(input_ids, positions))
        for index in self.encoder.config.block_order:
            block = cast(Block, self.encoder.blocks[index])
            states = block.finish(_attend(block.attention, states, bias), states)
        parts = [_POOLINGS[mode](states, weights) for mode in self.pooling]
        embeddings: Tensor = self.head(torch.cat(parts, dim=-1))
        return embeddings


def _attend(attention: Attention, states: Tensor, bias: Tensor) -> Tensor:
    """Compute attention within each text, without its padding; float (batch, seq_len, hidden)."""
    config = attention.config
    shape = (*states.shape[:2], config.heads, config.head_dim)
    query, key, value = (part.view(shape).transpose(1, 2) for part in attention.project(states))
    context = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, scale=config.head_dim**-0.5
    )
    out: Tensor = attention.output(context.transpose(1, 2).flatten(2))
    return out


def _mean(states: Tensor, weights: Tensor) -> Tensor:
    return (states * weights).sum(dim=1) / weights.sum(dim=1)


def _max(states: Tensor, weights: Tensor) -> Tensor:
    return states.masked_fill(weights == 0, float("-inf")).amax(dim=1)


# The pooling modes of `heads.POOLINGS` except "sum", for padded states (batch, seq_len, hidden).
# The second argument of each function, (batch, seq_len, 1), is 1 for a token and 0 for padding.
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
