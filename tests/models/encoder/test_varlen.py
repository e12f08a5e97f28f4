"""CUDA's kernel for packed texts, called with fake tensors."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC2701 (no public name)

from sbert_search.models.encoder import self_attention as varlen
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.selected_tokens import SelectedTokens
from sbert_search.models.encoder.self_attention import (
    Heads,
    has_varlen_kernel,
    packed_attention,
    varlen_attention,
)


@pytest.fixture(autouse=True)
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "_capability", lambda device: (8, 0))


def test_a_gpu_before_ampere_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        query = torch.empty(20, 4, 64, dtype=torch.float16, device="cuda")
        narrow = torch.empty(20, 4, 20, dtype=torch.float16, device="cuda")
    assert has_varlen_kernel(query)
    assert not has_varlen_kernel(narrow)
    monkeypatch.setattr(varlen, "_capability", lambda device: (7, 5))
    assert not has_varlen_kernel(query)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("causal", [False, True])
def test_the_cuda_kernel_takes_packed_heads(
    dropout: float, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fake tensors check the kernel's signature without the device; they cannot be pinned."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    with FakeTensorMode():
        query, key, value = torch.empty(3, 20, 4, 64, dtype=torch.bfloat16, device="cuda").unbind()
        tokens = PackedTokens(torch.empty(20, dtype=torch.int64, device="cuda"), (12, 8))
        context = packed_attention(
            Heads(query, key, value), tokens, scale=0.1, dropout=dropout, causal=causal
        )
    assert context.shape == (20, 256)
    assert (context.device.type, context.dtype) == ("cuda", torch.bfloat16)


def test_the_cuda_kernel_takes_selected_tokens() -> None:
    """Fake tensors check a kernel's signature and shapes without the device."""
    with FakeTensorMode():
        query, key, value = (
            torch.empty(n, 4, 64, dtype=torch.bfloat16, device="cuda") for n in (8, 28, 28)
        )
        rows = torch.empty(8, dtype=torch.int64, device="cuda")
        counts = torch.empty(4, dtype=torch.int64, device="cuda")
        context = varlen_attention(
            query,
            key,
            value,
            query_starts=SelectedTokens(rows, rows, counts).starts,
            key_starts=torch.empty(5, dtype=torch.int32, device="cuda"),
            longest=11,
            scale=0.1,
            p=0.1,
        )
    assert context.shape == (8, 256)
