"""Token ids to the first hidden states."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.dropout import dropout
from sbert_search.encoder.packed import PackedTokens


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, normed, then projected if they are narrow.

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

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Embed a batch; float (total, hidden). Segments are ignored when none are told apart."""
        config = self.config
        states = self.word(tokens.input_ids)
        if config.position_embeddings:
            states = states + self.position(self._positions(tokens))
        if config.token_type_vocab:
            states = states + self._segments(tokens)
        states = dropout(self.norm(states), config.hidden_dropout, self.training)
        return self.project(states) if config.embedding_size is not None else states

    def _positions(self, tokens: PackedTokens) -> Tensor:
        """Find the row of each position; where rows precede the first, padding has the last such.

        A text may spell out the token of padding. RoBERTa counts no position for it.
        """
        offset = self.config.position_offset
        if not offset:
            return tokens.positions
        pads = tokens.input_ids == self.config.pad_id
        before = pads.cumsum(-1) - pads.long()
        starts = torch.arange(pads.shape[-1], device=pads.device) - tokens.positions
        positions = tokens.positions - before + before[..., starts] + offset
        return positions.masked_fill(pads, offset - 1)

    def _segments(self, tokens: PackedTokens) -> Tensor:
        types, table = tokens.token_type_ids, self.token_type.weight
        return table[0] if types is None else F.embedding(types, table)
