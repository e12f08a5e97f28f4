"""The published configurations of the BERT family, by name.

The small generator of ELECTRA has the sizes of the model that google-research/electra published: it
is as wide as the small discriminator. In the paper, it has a quarter of this width.

Sources: google-research/bert (tiny to large), Wang et al. 2020 (MiniLM, arXiv:2002.10957),
Liu et al. 2019 (RoBERTa, table 9), google-research/albert (version 2), Sanh et al. 2019
(DistilBERT, arXiv:1910.01108), google-research/electra, He et al. 2021 (DeBERTa, table 8).
"""

from __future__ import annotations

from dataclasses import replace

from sbert_search.config import unknown_name
from sbert_search.encoder.config import EncoderConfig
from sbert_search.errors import ConfigError


def _bert(layers: int, hidden: int, heads: int) -> EncoderConfig:
    return EncoderConfig(
        layers=layers, hidden_size=hidden, heads=heads, intermediate_size=4 * hidden, pooler=True
    )


def _roberta(layers: int, hidden: int, heads: int) -> EncoderConfig:
    return replace(
        _bert(layers, hidden, heads),
        layout="roberta",
        vocab_size=50265,
        pad_id=1,
        position_offset=2,
        token_type_vocab=1,
        layer_norm_eps=1e-5,
    )


def _albert(layers: int, hidden: int, heads: int) -> EncoderConfig:
    return replace(
        _bert(layers, hidden, heads),
        layout="albert",
        vocab_size=30000,
        embedding_size=128,
        layer_groups=1,
        activation="gelu_tanh",
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


def _electra(hidden: int, heads: int, embedding_size: int | None) -> EncoderConfig:
    config = _bert(12, hidden, heads)
    return replace(config, layout="electra", embedding_size=embedding_size, pooler=False)


PRESETS: dict[str, EncoderConfig] = {
    "bert-tiny": _bert(2, 128, 2),
    "bert-mini": _bert(4, 256, 4),
    "bert-small": _bert(4, 512, 8),
    "bert-medium": _bert(8, 512, 8),
    "bert-base": _bert(12, 768, 12),
    "bert-large": _bert(24, 1024, 16),
    "minilm-l6": _bert(6, 384, 12),
    "minilm-l12": _bert(12, 384, 12),
    "roberta-base": _roberta(12, 768, 12),
    "roberta-large": _roberta(24, 1024, 16),
    "albert-base": _albert(12, 768, 12),
    "albert-large": _albert(24, 1024, 16),
    "albert-xlarge": _albert(24, 2048, 16),
    "albert-xxlarge": _albert(12, 4096, 64),
    "distilbert": replace(_bert(6, 768, 12), layout="distilbert", token_type_vocab=0, pooler=False),
    "electra-small-generator": _electra(256, 4, 128),
    "electra-small": _electra(256, 4, 128),
    "electra-base-generator": _electra(256, 4, 768),
    "electra-base": _electra(768, 12, None),
    "deberta-base": EncoderConfig(
        layout="deberta",
        vocab_size=50265,
        position_embeddings=False,
        token_type_vocab=0,
        attention_terms=("c2c", "c2p", "p2c"),
        relative_positions=512,
        key_bias=False,
        layer_norm_eps=1e-7,
    ),
}


def preset(name: str) -> EncoderConfig:
    """Look up a published configuration.

    Raises:
        ConfigError: The name is unknown; the message suggests the nearest name or lists all.
    """
    if name not in PRESETS:
        raise ConfigError(unknown_name(name, name, PRESETS, "encoder"))
    return PRESETS[name]
