from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sbert_search.errors import ModelError
from sbert_search.models.encoder.inference_layers import PackedLinear, freeze
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.weights import save_encoder
from tests.models.encoder.small import DISENTANGLED, small_encoder

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = PackedTokens.from_lists([[1, 2, 3], [4], list(range(1, 13)), [7, 8, 9]])


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"activation": "gelu_tanh", "layer_groups": 1, "embedding_size": 8},
        {"activation": "relu", "token_type_vocab": 0},
        DISENTANGLED,
    ],
)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.bfloat16, 0.1), (torch.float16, 0.01)]
)
def test_frozen_states_equal(shape: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    encoder = small_encoder(initializer_range=0.1, **shape).to(dtype)
    with torch.inference_mode():
        plain = encoder(TOKENS).hidden_states
        frozen = freeze(encoder)(TOKENS).hidden_states
    assert frozen.dtype == dtype
    assert float((plain - frozen).abs().max()) <= tolerance


def test_frozen_vectors_do_not_depend_on_company() -> None:
    encoder = freeze(small_encoder())
    together = encoder(TOKENS).hidden_states[4:16]
    alone = encoder(PackedTokens.from_lists([range(1, 13)])).hidden_states
    assert float((together - alone).abs().max()) / 24**0.5 <= 1e-6


def test_frozen_encoder_neither_trains_nor_saves(tmp_path: Path) -> None:
    encoder = freeze(small_encoder().train())
    assert not encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    with pytest.raises(ModelError, match="`freeze` has converted for inference cannot be saved"):
        save_encoder(encoder, tmp_path)


@pytest.mark.parametrize("shape", [(768, 768), (768, 1152), (1152, 768)])
@pytest.mark.parametrize("bias", [True, False])
def test_wide_layers_have_close_products_whatever_computes_them(
    shape: tuple[int, int], bias: bool
) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(shape[1], shape[0], bias=bias)
    states = torch.randn(37, shape[1])
    packed = PackedLinear(linear)
    with torch.no_grad():
        together = packed(states)
        torch.testing.assert_close(together, linear(states), atol=1e-5, rtol=0)
        for rows in (1, 3, 16, 30):
            few = packed(states[:rows])
            torch.testing.assert_close(few, together[:rows], atol=1e-5, rtol=0)
            if torch.backends.cpu.get_cpu_capability() == "AVX2":
                # MKL has equal bits, whatever else is in the batch; oneDNN on AVX-512 has not.
                assert torch.equal(few, together[:rows])
