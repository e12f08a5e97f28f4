"""The embeddings: from token ids to the input of the first block."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.dropout import dropout


class EmbeddableTokens(Protocol):
    """The attributes of a batch that `Embeddings` reads.

    The tensors of a packed batch, without padding, are (total,). Those of a padded batch are
    (batch, seq_len), but its positions are (seq_len,).
    """

    @property
    def input_ids(self) -> Tensor:
        """Token ids, int64."""

    @property
    def positions(self) -> Tensor:
        """Position of each token in its text, from 0, int64."""

    @property
    def token_type_ids(self) -> Tensor | None:
        """Segment of each token, int64; None: all 0."""


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, layer-normalised.

    If ``embedding_size`` is set, the sum is then projected to ``hidden_size``.

    Source: Devlin et al. 2019, section 3 (arXiv:1810.04805); projection: Lan et al. 2020, section
    3.1 (arXiv:1909.11942).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.table_size
        self.word = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_id)
        if config.position_embeddings:
            self.position = nn.Embedding(config.max_positions + config.position_offset, width)
        if config.token_type_vocab:
            self.token_type = nn.Embedding(config.token_type_vocab, width)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        if config.embedding_size is not None:
            self.project = nn.Linear(width, config.hidden_size)

    def forward(self, tokens: EmbeddableTokens) -> Tensor:
        """Embed a batch; float (..., hidden).

        Segment ids are ignored if the encoder has no segment embeddings.
        """
        config = self.config
        states = self.word(tokens.input_ids)
        if config.position_embeddings:
            states = states + self.position(self._positions(tokens))
        if config.token_type_vocab:
            states = states + self._segments(tokens)
        states = dropout(self.norm(states), config.hidden_dropout, self.training)
        return self.project(states) if config.embedding_size is not None else states

    def _positions(self, tokens: EmbeddableTokens) -> Tensor:
        """Row of each token in the position table."""
        offset = self.config.position_offset
        if not offset:
            return tokens.positions
        # A text may contain the padding token, for instance if a user typed "<pad>". RoBERTa gives
        # this token row number `offset - 1` and does not count it in the positions of later tokens.
        pads = tokens.input_ids == self.config.pad_id
        before = pads.cumsum(-1) - pads.long()
        starts = torch.arange(pads.shape[-1], device=pads.device) - tokens.positions
        positions = tokens.positions - before + before[..., starts] + offset
        return positions.masked_fill(pads, offset - 1)

    def _segments(self, tokens: EmbeddableTokens) -> Tensor:
        types, table = tokens.token_type_ids, self.token_type.weight
        return table[0] if types is None else F.embedding(types, table)
