from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import RobertaConfig, RobertaModel, XLMRobertaConfig, XLMRobertaModel

from tests.parity import family


class TestRoberta(family.SameAsReference):
    shapes = (
        {"num_hidden_layers": 1, "pad_token_id": 4, "max_position_embeddings": 19 + 5},
        {"num_hidden_layers": 3, "pad_token_id": 0, "max_position_embeddings": 19 + 1},
    )
    segments = 1
    classes: tuple[Any, Any] = (RobertaConfig, RobertaModel)

    def make(self, **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "vocab_size": family.VOCAB,
            "hidden_size": 36,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 50,
            "max_position_embeddings": family.POSITIONS + 2,
            "type_vocab_size": 1,
            "pad_token_id": 1,
            "layer_norm_eps": 1e-5,
            "attn_implementation": "eager",
        }
        config, model = self.classes
        return model(config(**settings | changes))


class TestXlmRoberta(TestRoberta):
    classes = (XLMRobertaConfig, XLMRobertaModel)

    # Heads are 64 wide, or 32 in the models of 12 layers of width 384.
    @pytest.mark.parametrize(("length", "heads"), [(64, 4), (127, 2), (300, 4), (512, 2), (512, 4)])
    def test_the_published_heads_and_positions(
        self, tmp_path: Path, length: int, heads: int
    ) -> None:
        sizes = {"hidden_size": 128, "num_attention_heads": heads, "max_position_embeddings": 514}
        self.compare(tmp_path, (length, 1, 70), gradients=True, **sizes)
