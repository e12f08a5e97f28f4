"""The last block for some rows alone gives the states, and the gradients, of the whole."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sbert_search.encoder.attention.selected_tokens import AskedRows, asked_attention
from sbert_search.encoder.block import Block
from sbert_search.encoder.dropout import dropout
from sbert_search.encoder.encoder import Encoder
from sbert_search.encoder.packed import PackedTokens
from tests.encoder.small import small_encoder

LENGTHS = (7, 3, 11, 7)  # the last one moves beside the first
ROWS = torch.tensor([27, 0, 5, 7, 11, 13, 22, 1])  # no order; one text has one row


def gradients(
    encoder: Encoder, tokens: PackedTokens, *, asked: bool
) -> tuple[Tensor, list[Tensor]]:
    encoder.zero_grad()
    if asked:
        states = encoder(tokens, rows=ROWS).hidden_states
    else:
        states = encoder(tokens).hidden_states[ROWS]
    torch.autograd.backward(states.pow(3).sum())
    return states, [p.grad.clone() for p in encoder.parameters() if p.grad is not None]


@pytest.mark.parametrize("layers", [1, 3])
def test_rows_asked_for_are_rows_of_the_whole(layers: int) -> None:
    encoder = small_encoder(layers=layers)
    ids = torch.randint(5, encoder.config.vocab_size, (sum(LENGTHS),))
    tokens = PackedTokens(ids, LENGTHS)
    whole, wanted = gradients(encoder, tokens, asked=False)
    some, found = gradients(encoder, tokens, asked=True)
    assert torch.allclose(some, whole, atol=1e-5)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_first_states_are_asked_for_where_gradients_are_wanted() -> None:
    encoder = small_encoder(layers=2)
    tokens = PackedTokens(torch.randint(5, encoder.config.vocab_size, (sum(LENGTHS),)), LENGTHS)
    with mock.patch.object(Block, "ask", autospec=True, side_effect=Block.ask) as ask:
        with torch.no_grad():
            whole = encoder.first_states(tokens)
        assert not ask.called
        found = encoder.first_states(tokens)
        assert ask.call_count == 1
    assert torch.equal(whole, encoder(tokens).hidden_states[tokens.first_rows])
    assert torch.allclose(found, whole, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"causal": True}, {"attention_terms": ("c2c", "c2p"), "relative_positions": 8}],
)
def test_what_cannot_be_asked_for_is_picked_from_the_whole(changes: dict[str, object]) -> None:
    encoder = small_encoder(**changes)
    tokens = PackedTokens(torch.randint(5, encoder.config.vocab_size, (sum(LENGTHS),)), LENGTHS)
    with torch.no_grad():
        assert torch.equal(
            encoder(tokens, rows=ROWS).hidden_states, encoder(tokens).hidden_states[ROWS]
        )


def test_the_cuda_kernel_takes_rows_asked_for() -> None:
    """Fake tensors check a kernel's signature and shapes without the device."""
    with FakeTensorMode():
        query, key, value = (
            torch.empty(n, 4, 64, dtype=torch.bfloat16, device="cuda") for n in (8, 28, 28)
        )
        tokens = PackedTokens(torch.empty(28, dtype=torch.int64), LENGTHS)
        vars(tokens)["starts"] = torch.empty(5, dtype=torch.int32, device="cuda")
        rows = torch.empty(8, dtype=torch.int64, device="cuda")
        counts = torch.empty(4, dtype=torch.int64, device="cuda")
        mixed = asked_attention(
            query,
            key,
            value,
            tokens,
            AskedRows(rows, rows, counts),
            scale=0.1,
            share=0.1,
            varlen=True,
        )
    assert mixed.shape == (8, 256)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_dropout_keeps_its_share_and_the_mean(share: float) -> None:
    torch.manual_seed(0)
    states = torch.ones(1001, 999)
    states.requires_grad_()
    out = dropout(states, share, training=True)
    kept = out != 0
    assert kept.float().mean().item() == pytest.approx(1 - share, abs=2e-3)
    assert torch.unique(out[kept]).tolist() == pytest.approx([1 / (1 - share)], rel=1e-4)
    assert kept.float().mean(0).std().item() < 0.02  # no pattern over columns
    assert kept[:, :-1].ne(kept[:, 1:]).float().mean().item() == pytest.approx(
        2 * share * (1 - share), abs=2e-3
    )
    torch.autograd.backward(out.sum())
    assert states.grad is not None
    assert torch.equal(states.grad, out)


def test_dropout_is_a_function_of_torchs_seed_and_off_when_not_training() -> None:
    states = torch.randn(5, 7)
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(dropout(states, 0.5, training=True))
    assert torch.equal(*draws)
    assert dropout(states, 0.5, training=False) is states
    assert dropout(states, 0.0, training=True) is states
