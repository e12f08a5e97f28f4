"""A small encoder with weights large enough to show a mistake."""

from __future__ import annotations

from typing import Any

import torch

from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder

DISENTANGLED: dict[str, Any] = {
    "attention_terms": ("c2c", "c2p", "p2c"),
    "relative_positions": 5,
    "key_bias": False,
    "position_embeddings": False,
}

ROTATED: dict[str, Any] = {
    "position_embeddings": False,
    "gated": True,
    "pre_norm": True,
    "has_biases": False,
    "rotary_base": 160_000.0,
    "global_every": 2,
    "local_reach": 2,
    "local_rotary_base": 10_000.0,
}


def small_encoder(**changes: Any) -> Encoder:
    settings: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 24,
        "layers": 2,
        "heads": 2,
        "intermediate_size": 40,
        "max_positions": 12,
        "initializer_range": 0.3,
    }
    torch.manual_seed(0)
    return Encoder(EncoderConfig(**settings | changes)).eval()
