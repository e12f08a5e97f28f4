from __future__ import annotations

from typing import Any

from transformers import DistilBertConfig, DistilBertModel

from tests.parity import family


class TestDistilBert(family.SameAsReference):
    shapes = ({"n_layers": 1, "activation": "relu"}, {"n_layers": 3, "dim": 40, "n_heads": 1})
    segments = 0

    def make(self, **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "vocab_size": family.VOCAB,
            "dim": 36,
            "n_layers": 2,
            "n_heads": 3,
            "hidden_dim": 50,
            "max_position_embeddings": family.POSITIONS,
            "attn_implementation": "eager",
        }
        return DistilBertModel(DistilBertConfig(**settings | changes))
