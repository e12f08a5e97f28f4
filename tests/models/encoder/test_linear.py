from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sbert_search.base.device import has_onednn
from sbert_search.models.encoder import training_layers as module
from sbert_search.models.encoder.training_layers import Linear, linear

Draws = tuple[Tensor, Tensor, Tensor | None]


def draws(*, bias: bool) -> Draws:
    torch.manual_seed(0)
    states, weight, offset = torch.randn(37, 24), torch.randn(3 * 16, 24), torch.randn(16)
    half = weight[16:32].requires_grad_()  # a slice, as some products take
    return states.requires_grad_(), half, offset.requires_grad_() if bias else None


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose oneDNN on every CPU, also on those where it is not faster."""
    monkeypatch.setattr(module, "_HAS_ONEDNN", torch._C._has_mkldnn)


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_torch(bias: bool) -> None:
    found: list[list[Tensor | None]] = []
    for product in (linear, F.linear):
        given = draws(bias=bias)
        out = product(*given)
        assert (product is linear) == ("_Product" in type(out.grad_fn).__name__)
        torch.autograd.backward(out.pow(3).sum())
        found.append([out, *(part.grad for part in given if part is not None)])
    for ours, theirs in zip(*found, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("chosen")
def test_mixed_precision_rounds_as_torch_does_and_gives_float32_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_onednn(torch.bfloat16):  # torch then computes the products, not the gradients
        monkeypatch.setattr(module, "has_onednn", lambda _: True)
        monkeypatch.setattr(module, "_product", F.linear)
    found: list[list[Tensor]] = []
    for product in (linear, F.linear):
        given = draws(bias=True)
        with torch.autocast("cpu", torch.bfloat16):
            out = product(*given)
        assert (product is linear) == ("_Product" in type(out.grad_fn).__name__)
        torch.autograd.backward(out.float().pow(2).sum())
        found.append(
            [out, *(part.grad for part in given if part is not None and part.grad is not None)]
        )
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.allclose(ours, theirs, rtol=0.02, atol=0.02 * theirs.abs().max().item())


@pytest.mark.usefixtures("chosen")
def test_inference_and_a_large_table_for_few_rows_are_left_to_torch() -> None:
    states, weight, bias = draws(bias=True)
    with torch.no_grad():
        assert torch.equal(linear(states, weight, bias), F.linear(states, weight, bias))
    with torch.autocast("cpu", torch.bfloat16):
        out = linear(states, torch.randn(400, 24), None)
    assert (out.dtype, "_Product" in type(out.grad_fn).__name__) == (torch.bfloat16, False)
    assert Linear(24, 16)(states.half().float()).shape == (37, 16)
