from typing import Any

import pytest
import torch

from sbert_search.lab.attention.pruning import gated
from sbert_search.models.encoder.packed import PackedTokens
from tests.models.encoder.small import DISENTANGLED, small_encoder

SHAPES: list[dict[str, Any]] = [{}, {"layers": 4, "layer_groups": 2}, DISENTANGLED]
IDS = [[5, 9, 7, 3], [8, 6, 4], [1, 2, 3]]
TOKENS = PackedTokens.from_lists(IDS).by_length().tokens


def states(encoder: Any, tokens: PackedTokens = TOKENS) -> torch.Tensor:
    out: torch.Tensor = encoder(tokens).hidden_states
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_gates_of_1_change_nothing_and_are_removed_afterwards(shape: dict[str, Any]) -> None:
    encoder = small_encoder(**shape)
    plain = states(encoder)
    layers = encoder.config.layers
    with gated(encoder, torch.ones(layers, 2)):
        assert torch.allclose(states(encoder), plain, atol=1e-6)
    with gated(encoder, torch.zeros(layers, 2)):
        assert not torch.allclose(states(encoder), plain, atol=1e-3)
    assert torch.equal(states(encoder), plain)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("head", [0, 1])
def test_a_closed_gate_equals_output_weights_of_zero(layer: int, head: int) -> None:
    encoder, cut = small_encoder(), small_encoder()
    width = encoder.config.head_dim
    with torch.no_grad():
        block: Any = cut.blocks[layer]
        block.attention.output.weight[:, head * width : (head + 1) * width] = 0
    gates = torch.ones(2, 2)
    gates[layer, head] = 0
    with gated(encoder, gates):
        assert torch.allclose(states(encoder), states(cut), atol=1e-6)


def test_layers_that_share_a_block_have_their_own_gates() -> None:
    shared = small_encoder(layers=2, layer_groups=1)
    copied = small_encoder(layers=2)
    copied.load_state_dict(
        {
            **{name: t for name, t in shared.state_dict().items() if "blocks" not in name},
            **{
                name.replace("blocks.0", f"blocks.{layer}"): tensor
                for name, tensor in shared.state_dict().items()
                for layer in (0, 1)
                if "blocks" in name
            },
        }
    )
    gates = torch.tensor([[1.0, 0.0], [0.5, 1.0]])
    with gated(shared, gates), gated(copied, gates):
        for _ in range(2):  # the count of layers starts again with each pass
            assert torch.allclose(states(shared), states(copied), atol=1e-6)


def test_each_group_of_tokens_has_its_own_gates() -> None:
    encoder = small_encoder()
    gates = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(0))
    with gated(encoder, gates, TOKENS.text_of_row):
        together = torch.split(states(encoder), list(TOKENS.lengths))
    for text, ids in enumerate(torch.split(TOKENS.input_ids, list(TOKENS.lengths))):
        with gated(encoder, gates[:, text]):
            alone = states(encoder, PackedTokens(ids, (len(ids),)))
        assert torch.allclose(together[text], alone, atol=1e-6)


def test_rows_of_the_last_block_are_gated_too() -> None:
    encoder, rows = small_encoder(), torch.tensor([0, 4])
    gates = torch.tensor([[0.3, 1.0], [1.0, 0.2]])
    with gated(encoder, gates), torch.no_grad():
        some = encoder(TOKENS, rows=rows).hidden_states
        assert torch.allclose(some, states(encoder)[rows], atol=1e-6)
