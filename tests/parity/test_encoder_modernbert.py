from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import ModernBertConfig, ModernBertModel

from sbert_search.errors import ModelError
from sbert_search.models.encoder.weights import load_encoder
from tests.parity import family
from tests.parity.folders import bare, edit


class TestModernBert(family.SameAsReference):
    shapes = (
        {"num_hidden_layers": 1, "local_attention": 2},
        {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3},
        {"num_hidden_layers": 5, "global_attn_every_n_layers": 2, "local_attention": 40},
        {
            "num_hidden_layers": 4,
            "hidden_activation": "gelu_new",
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 50.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 7.0},
            },
        },
    )
    segments = 0

    def make(self, **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "vocab_size": family.VOCAB,
            "hidden_size": 36,
            "num_hidden_layers": 4,
            "num_attention_heads": 3,
            "intermediate_size": 50,
            "max_position_embeddings": family.POSITIONS,
            "local_attention": 6,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "cls_token_id": 1,
            "eos_token_id": 2,
            "sep_token_id": 2,
            "attn_implementation": "eager",
        }
        return ModernBertModel(ModernBertConfig(**settings | changes))

    @pytest.mark.parametrize("length", [64, 65, 66, 129, 193, 512])
    def test_the_published_windows_are_kept(self, tmp_path: Path, length: int) -> None:
        """Heads are 64 wide, and a token of a local layer sees 64 tokens on each side."""
        self.compare(tmp_path, length, gradients=length < 512)

    @pytest.mark.thorough
    def test_a_long_text_is_computed_alike(self, tmp_path: Path) -> None:
        self.compare(tmp_path, 2048, gradients=False)

    def compare(self, folder: Path, length: int, *, gradients: bool) -> None:
        sizes = {"hidden_size": 128, "num_attention_heads": 2, "local_attention": 128}
        model = family.random_parameters(self.make(**sizes, max_position_embeddings=8192))
        encoder, tokens = family.our_copy(model, folder / "m"), family.random_batch((length, 70, 3))
        family.assert_same_states(model, encoder, tokens)
        if gradients:
            family.assert_same_gradients(model, encoder, tokens, folder / "gradients")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"]}, "needs full_attention in every"),
        ({"norm_bias": True}, "norm_bias is True; the native encoder needs False"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "needs rope_type"),
    ],
)
def test_what_is_not_computed_here_is_said(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    folder = edit(bare(tmp_path, "modernbert"), "config.json", **changes)
    with pytest.raises(ModelError, match=told):
        load_encoder(folder)
