from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import MPNetConfig, MPNetModel

from tests.parity import family


class TestMpnet(family.SameAsReference):
    shapes = ({"num_hidden_layers": 1, "hidden_act": "relu"}, {"num_hidden_layers": 3})
    segments = 0

    def make(self, **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "vocab_size": family.VOCAB,
            "hidden_size": 36,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 50,
            "max_position_embeddings": family.POSITIONS + 2,
        }
        return MPNetModel(MPNetConfig(**settings | changes))

    @pytest.mark.parametrize("length", [8, 9, 16, 17, 127, 129, 300, 512])
    def test_every_bucket_of_distances_is_used_as_there(self, tmp_path: Any, length: int) -> None:
        """The heads have the published width; the gradients include those of the biases."""
        sizes = {"hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 514}
        model = family.random_parameters(self.make(**sizes))
        with torch.no_grad():
            model.encoder.relative_attention_bias.weight.mul_(20)
        encoder, tokens = family.our_copy(model, tmp_path / "m"), family.random_batch((length, 3))
        family.assert_same_states(model, encoder, tokens)
        family.assert_same_gradients(model, encoder, tokens, tmp_path / "gradients")
