"""DeBERTa's enhanced mask decoder, which adds absolute positions before the token head."""

from __future__ import annotations

from torch import Tensor, nn

from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.encoder import Encoder
from sbert_search.encoder.packed import PackedTokens

STEPS = 2  # number of times that the last block is applied


class MaskDecoder(nn.Module):
    """Applies the encoder's last block twice, with absolute positions added to the queries.

    The first queries are the input of the block plus embeddings of absolute positions. The second
    queries are the output of the first application. Keys and values come from the input of the
    block in both applications.

    Source: He et al. 2021, DeBERTa, section 3.2 (arXiv:2006.03654). The last block is applied twice
    with the same weights, as by ``emd_context_layer`` in microsoft/DeBERTa.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.position = nn.Embedding(config.max_positions, config.hidden_size)
        nn.init.normal_(self.position.weight, std=config.initializer_range)

    def forward(self, encoder: Encoder, tokens: PackedTokens, before_last: Tensor) -> Tensor:
        """Compute the states from which the token head predicts tokens.

        Args:
            encoder: The encoder whose last block is applied.
            tokens: The batch: the tokens of all texts, one text after the other.
            before_last: Input of the last block for all tokens, float (tokens, hidden).

        Returns:
            Float (tokens, hidden).
        """
        block = encoder.blocks[encoder.config.block_order[-1]]
        distances = encoder.relative_distances(tokens)
        queries: Tensor = before_last + self.position(tokens.positions)
        for _ in range(STEPS):
            queries, _ = block(before_last, tokens, queries=queries, distances=distances)
        return queries
