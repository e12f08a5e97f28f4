from __future__ import annotations

import pytest
import torch

from sbert_search.models.encoder import self_attention
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.self_attention import (
    Heads,
    RelativeHeads,
    explicit_attention,
    packed_attention,
)


def test_relative_scores_equal_their_definition() -> None:
    """He et al. 2021, equation 4, one pair of tokens at a time."""
    length, reach, heads, width = 7, 3, 2, 4
    generator = torch.Generator().manual_seed(0)
    key_rows, query_rows = torch.randn(2, 2 * reach, heads, width, generator=generator)
    query, key = torch.randn(2, 1, heads, length, width, generator=generator)
    scores = RelativeHeads(key_rows, query_rows).scores(query, key)
    for i in range(length):
        for j in range(length):
            row = min(max(i - j + reach, 0), 2 * reach - 1)
            expected = (query[0, :, i] * key_rows[row]).sum(-1)
            expected += (key[0, :, j] * query_rows[row]).sum(-1)
            assert torch.allclose(scores[0, :, i, j], expected, atol=1e-5)


@pytest.mark.parametrize(("fewest_rows", "most_scores"), [(0, 2**20), (0, 1500), (64, 2**20)])
def test_products_on_a_cpu_in_bf16_equal_exact_attention(
    fewest_rows: int, most_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths around a vector of 32 elements; a low limit of scores splits texts between heads.

    Runs with fewer rows than ``fewest_rows`` are computed by the fused kernel.
    """
    monkeypatch.setattr(self_attention, "_SCORES", most_scores)
    monkeypatch.setattr(self_attention, "_FEWEST_TOKENS", fewest_rows)
    lengths = (1, 2, 31, 31, 32, 33, 33, 33, 70)
    tokens = PackedTokens(torch.zeros(sum(lengths), dtype=torch.int64), lengths)
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(tokens.total, 3, 4, 16, generator=generator).bfloat16().unbind(1)
    expected, _ = explicit_attention(
        Heads(*(part.float() for part in parts)), tokens, scale=0.25, dropout=0.0, causal=False
    )
    with torch.inference_mode():
        context = packed_attention(Heads(*parts), tokens, scale=0.25, dropout=0.0, causal=False)
    assert context.dtype == torch.bfloat16
    assert torch.allclose(context.float(), expected, atol=0.02)
