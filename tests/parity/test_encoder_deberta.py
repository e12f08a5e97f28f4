from __future__ import annotations

from typing import Any

from transformers import DebertaConfig, DebertaModel

from tests.parity import family


class TestDeberta(family.SameAsReference):
    shapes = (
        {"pos_att_type": []},
        {"pos_att_type": ["c2p"]},
        {"pos_att_type": "p2c"},
        {"pos_att_type": "p2c|c2p", "max_relative_positions": 5},
        {"num_hidden_layers": 1, "position_biased_input": True, "type_vocab_size": 2},
        {"num_hidden_layers": 3, "relative_attention": False, "pos_att_type": None},
    )
    segments = 2

    def make(self, **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "vocab_size": family.VOCAB,
            "hidden_size": 36,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 50,
            "max_position_embeddings": family.POSITIONS,
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["c2p", "p2c"],
        }
        return DebertaModel(DebertaConfig(**settings | changes))
