"""Attention with dropout on a CPU, computed by windows, with a gradient of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from sbert_search.models.encoder import training_layers as cpu_dropout
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.training_layers import draw_factors, dropout_attention
from tests.models.encoder.small import small_encoder

HEADS, WIDTH, SCALE = 3, 8, 0.3
LENGTHS = (5, 5, 1, 3, 15, 16, 17, 20, 40)  # one window of many lengths, and some of one


def batch(lengths: Sequence[int]) -> PackedTokens:
    return PackedTokens(torch.zeros(sum(lengths), dtype=torch.int64), tuple(lengths))


def by_definition(parts: Tensor, tokens: PackedTokens, factors: Sequence[Tensor]) -> Tensor:
    """Attend text by text, with the dropout factors that each window drew."""
    context, start = [], 0
    for window, drawn in zip(tokens.windows, factors, strict=True):
        by_text = drawn.view(window.texts, HEADS, window.length, window.length)
        for text in range(window.texts):
            length = tokens.lengths[start]
            first = sum(tokens.lengths[:start])
            query, key, value = parts[first : first + length].permute(1, 2, 0, 3)
            probs = (query @ key.mT * SCALE).softmax(-1)
            context.append((probs * by_text[text, :, :length, :length] @ value).transpose(0, 1))
            start += 1
    return torch.cat(context).flatten(1)


@pytest.mark.parametrize("lengths", [LENGTHS, (6, 6, 6)])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-6), (torch.bfloat16, 0.05)])
def test_values_and_gradients_are_those_of_the_definition(
    lengths: Sequence[int], dtype: torch.dtype, atol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Tensor] = []

    def recorded(shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
        drawn.append(draw_factors(shape, p, dtype))
        return drawn[-1]

    monkeypatch.setattr(cpu_dropout, "draw_factors", recorded)
    torch.manual_seed(0)
    tokens = batch(lengths)
    parts = torch.randn(tokens.total, 3, HEADS, WIDTH, dtype=dtype, requires_grad=True)
    gradient = torch.randn(tokens.total, HEADS * WIDTH, dtype=dtype)
    query, key, value = parts.unbind(1)
    ours = dropout_attention(query, key, value, tokens, scale=SCALE, p=0.25)
    (to_parts,) = torch.autograd.grad(ours, parts, gradient)
    exact = parts.detach().double().requires_grad_()
    expected = by_definition(exact, tokens, [factors.double() for factors in drawn])
    (to_exact,) = torch.autograd.grad(expected, exact, gradient.double())
    assert ours.dtype == to_parts.dtype == dtype
    assert torch.allclose(ours.double(), expected, atol=atol)
    assert torch.allclose(to_parts.double(), to_exact, atol=atol)


def test_windows_hold_every_row_once_and_hide_padding() -> None:
    tokens = batch(LENGTHS)
    windows = tokens.windows
    assert [(w.texts, w.length) for w in windows] == [(6, 16), (2, 32), (1, 40)]
    assert [w.rows for w in windows] == [slice(0, 45), slice(45, 82), slice(82, 122)]
    padded = windows[0]
    assert padded.bias is not None
    assert (padded.bias == 0).sum(-1).flatten().tolist() == list(LENGTHS[:6])
    assert windows[2].padded_rows is None  # a run alone is not padded


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_of_an_encoder_is_a_function_of_the_seed(causal: bool) -> None:
    encoder = small_encoder(attention_dropout=0.4, hidden_dropout=0.0, causal=causal).train()
    tokens, draws = batch((3, 5, 7)), []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        draws.append(encoder(tokens).hidden_states)
    assert torch.equal(draws[0], draws[1])
    assert not torch.allclose(draws[0], draws[2], atol=1e-3)
