"""The cost of an encoder: its parameters and its floating-point operations."""

from __future__ import annotations

from sbert_search.encoder.config import EncoderConfig


def parameter_count(config: EncoderConfig) -> int:
    """Count the parameters of an encoder; shared parameters count once."""
    hidden, width = config.hidden_size, config.table_size
    positions = config.max_positions + config.position_offset if config.position_embeddings else 0
    count = (config.vocab_size + positions + config.token_type_vocab) * width + 2 * width
    if config.embedding_size is not None:
        count += (width + 1) * hidden
    count += 2 * config.relative_positions * hidden
    count += config.n_blocks * _block_parameters(config)
    return count + (hidden + 1) * hidden * config.pooler


def _block_parameters(config: EncoderConfig) -> int:
    hidden, terms = config.hidden_size, config.attention_terms
    attention = 4 * hidden * hidden + (4 if config.key_bias else 3) * hidden
    attention += hidden * hidden * ("c2p" in terms) + (hidden + 1) * hidden * ("p2c" in terms)
    feed_forward = 2 * hidden * config.intermediate_size + config.intermediate_size + hidden
    return attention + feed_forward + 4 * hidden  # two norms


def flops_per_token(config: EncoderConfig, length: int) -> int:
    """Count the floating-point operations per token of a forward pass.

    A multiplication and an addition are two operations. Only matrix products count. The projections
    of relative positions are left out, because they are computed once for a whole batch, and the
    pooler, because it is computed once for a text.

    Args:
        config: The encoder.
        length: Number of tokens of each text.
    """
    hidden = config.hidden_size
    block = 2 * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    block += 2 * length * hidden  # probabilities times values
    for term in config.attention_terms:
        block += 2 * (length if term == "c2c" else 2 * length - 1) * hidden
    project = 2 * hidden * config.embedding_size if config.embedding_size is not None else 0
    return len(config.block_order) * block + project
