"""The last block, applied to selected rows, gives the states and gradients of all rows."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from sbert_search.models.encoder.encoder import Block, Encoder
from sbert_search.models.encoder.packed import PackedTokens
from tests.models.encoder.small import small_encoder

LENGTHS = (7, 3, 11, 7)  # the last one moves beside the first
ROWS = torch.tensor([27, 0, 5, 7, 11, 13, 22, 1])  # unordered; one text has one row


def gradients(
    encoder: Encoder, tokens: PackedTokens, *, selected: bool
) -> tuple[Tensor, list[Tensor]]:
    encoder.zero_grad()
    if selected:
        states = encoder(tokens, rows=ROWS).hidden_states
    else:
        states = encoder(tokens).hidden_states[ROWS]
    torch.autograd.backward(states.pow(3).sum())
    return states, [p.grad.clone() for p in encoder.parameters() if p.grad is not None]


@pytest.mark.parametrize("layers", [1, 3])
def test_selected_rows_equal_those_of_all_rows(layers: int) -> None:
    encoder = small_encoder(layers=layers)
    ids = torch.randint(5, encoder.config.vocab_size, (sum(LENGTHS),))
    tokens = PackedTokens(ids, LENGTHS)
    expected, expected_gradients = gradients(encoder, tokens, selected=False)
    states, state_gradients = gradients(encoder, tokens, selected=True)
    assert torch.allclose(states, expected, atol=1e-5)
    for gradient, other in zip(state_gradients, expected_gradients, strict=True):
        assert torch.allclose(gradient, other, atol=1e-4)


def test_first_states_are_selected_if_gradients_are_recorded() -> None:
    encoder = small_encoder(layers=2)
    tokens = PackedTokens(torch.randint(5, encoder.config.vocab_size, (sum(LENGTHS),)), LENGTHS)
    selected = mock.patch.object(
        Block, "forward_selected", autospec=True, side_effect=Block.forward_selected
    )
    with selected as calls:
        with torch.no_grad():
            expected = encoder.first_states(tokens)
        assert not calls.called
        states = encoder.first_states(tokens)
        assert calls.call_count == 1
    assert torch.equal(expected, encoder(tokens).hidden_states[tokens.first_rows])
    assert torch.allclose(states, expected, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"causal": True}, {"attention_terms": ("c2c", "c2p"), "relative_positions": 8}],
)
def test_other_attention_computes_all_rows(changes: dict[str, object]) -> None:
    encoder = small_encoder(**changes)
    tokens = PackedTokens(torch.randint(5, encoder.config.vocab_size, (sum(LENGTHS),)), LENGTHS)
    with torch.no_grad():
        assert torch.equal(
            encoder(tokens, rows=ROWS).hidden_states, encoder(tokens).hidden_states[ROWS]
        )
