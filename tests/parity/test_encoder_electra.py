from __future__ import annotations

from typing import Any

from transformers import ElectraConfig, ElectraModel

from tests.parity import family


class TestElectra(family.SameAsReference):
    shapes = ({"num_hidden_layers": 1, "embedding_size": 36}, {"num_hidden_layers": 3})

    def make(self, **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "vocab_size": family.VOCAB,
            "embedding_size": 11,
            "hidden_size": 36,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 50,
            "max_position_embeddings": family.POSITIONS,
            "attn_implementation": "eager",
        }
        return ElectraModel(ElectraConfig(**settings | changes))
