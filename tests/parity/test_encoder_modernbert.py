from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ModernBertConfig, ModernBertModel

from sbert_search.errors import ModelError
from sbert_search.models.encoder.weights import load_encoder
from tests.parity import family
from tests.parity.folders import bare, edit

PUBLISHED: dict[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "local_attention": 128,
    "max_position_embeddings": 8192,
}


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

    # Heads are 64 wide, or 32 in small models; a local layer sees 64 tokens on each side.
    @pytest.mark.parametrize(
        ("length", "heads"), [(64, 2), (65, 4), (66, 2), (129, 4), (193, 2), (512, 2), (512, 4)]
    )
    def test_the_published_windows_are_kept(self, tmp_path: Path, length: int, heads: int) -> None:
        sizes = PUBLISHED | {"num_attention_heads": heads}
        self.compare(tmp_path, (length, 70, 3), gradients=True, **sizes)

    @pytest.mark.thorough
    def test_a_long_text_is_computed_alike(self, tmp_path: Path) -> None:
        self.compare(tmp_path, (2048, 70), gradients=False, **PUBLISHED)

    @pytest.mark.thorough
    @pytest.mark.timeout(1800)
    def test_the_base_shape_reads_8192_tokens(self, tmp_path: Path) -> None:
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        base = PUBLISHED | dict(zip(names, (768, 22, 12, 1152), strict=True))
        model = self.make(**base, attn_implementation="sdpa").eval()
        encoder, tokens = family.our_copy(model, tmp_path), family.random_batch((8192,))
        with torch.no_grad():
            theirs = family.run_reference(model, tokens).last_hidden_state[0]
            family.assert_close(encoder(tokens).hidden_states, theirs)


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
