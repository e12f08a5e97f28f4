from __future__ import annotations

from typing import Any

from transformers import BertConfig, BertModel

from sbert_search.models.encoder.encoder import Encoder
from tests.parity import family


class TestBert(family.SameAsReference):
    shapes = (
        {"num_hidden_layers": 1, "hidden_act": "gelu_new"},
        {"num_hidden_layers": 3, "hidden_act": "relu", "type_vocab_size": 3, "pad_token_id": 4},
        {"hidden_size": 40, "num_attention_heads": 1, "layer_norm_eps": 1e-5},
    )

    def make(self, **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "vocab_size": family.VOCAB,
            "hidden_size": 36,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 50,
            "max_position_embeddings": family.POSITIONS,
            "attn_implementation": "eager",
        }
        return BertModel(BertConfig(**settings | changes))

    def test_pooler_equal(self, pair: tuple[Any, Encoder]) -> None:
        model, encoder = pair
        tokens = family.random_batch(family.ODD)
        ours = encoder.pool_first(encoder.first_states(tokens))
        family.assert_close(ours, family.run_reference(model, tokens).pooler_output)
