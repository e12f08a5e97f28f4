from __future__ import annotations

from typing import Any

from transformers import AlbertConfig, AlbertModel

from tests.parity import family


class TestAlbert(family.SameAsReference):
    shapes = (
        {"num_hidden_layers": 1, "hidden_act": "gelu"},
        {"num_hidden_layers": 3, "num_hidden_groups": 2},
        {"num_hidden_layers": 2, "num_hidden_groups": 2, "inner_group_num": 2},
        {"num_hidden_groups": 1, "inner_group_num": 2, "embedding_size": 36},
    )

    def make(self, **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "vocab_size": family.VOCAB,
            "embedding_size": 11,
            "hidden_size": 36,
            "num_hidden_layers": 3,
            "num_hidden_groups": 1,
            "num_attention_heads": 3,
            "intermediate_size": 50,
            "max_position_embeddings": family.POSITIONS,
            "attn_implementation": "eager",
        }
        return AlbertModel(AlbertConfig(**settings | changes))
