"""Dropout with 16-bit draws."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sbert_search.models.encoder.training_layers import dropout


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_drops_its_share_and_keeps_the_mean(p: float) -> None:
    torch.manual_seed(0)
    states = torch.ones(1001, 999)
    states.requires_grad_()
    out = dropout(states, p)
    kept = out != 0
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=2e-3)
    assert torch.unique(out[kept]).tolist() == pytest.approx([1 / (1 - p)], rel=1e-4)
    assert kept.float().mean(0).std().item() < 0.02  # no pattern over columns
    assert kept[:, :-1].ne(kept[:, 1:]).float().mean().item() == pytest.approx(
        2 * p * (1 - p), abs=2e-3
    )
    torch.autograd.backward(out.sum())
    assert states.grad is not None
    assert torch.equal(states.grad, out)


def test_a_probability_that_rounds_to_1_keeps_the_rest_finite() -> None:
    out = dropout(torch.ones(1000, 1000), 0.999995)
    assert torch.unique(out).tolist() == [0.0, 65536.0]


def test_dropout_is_a_function_of_torchs_seed_and_off_when_not_training() -> None:
    states = torch.randn(5, 7)
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(dropout(states, 0.5))
    assert torch.equal(*draws)
    assert dropout(states, 0.0) is states


def test_other_devices_use_torchs_own_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "dropout", lambda states, p: (states, p))
    states = torch.empty(2, 3, device="meta")
    found: object = dropout(states, 0.25)
    assert found == (states, 0.25)
