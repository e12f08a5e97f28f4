"""What only CUDA takes, as far as it runs without (its kernel: encoder/test_attention)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from sbert_search.embed.token_budget import BatchLauncher, Rows
from sbert_search.errors import ModelError
from sbert_search.models import heads as pooling
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.inference_layers import FusedLinear, freeze
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.heads import AT_ONCE, Normalize, pool
from tests.models.tiny import tiny_encoder, tiny_tokenizer

LENGTHS = (3, 3, 1, 5)


@pytest.mark.parametrize("mode", sorted(AT_ONCE))
def test_pooling_all_texts_at_once_equals_pooling_run_by_run(mode: str) -> None:
    tokens = PackedTokens(torch.zeros(12, dtype=torch.int64), LENGTHS)
    states = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    expected = pool(states, tokens, [mode])
    torch.testing.assert_close(AT_ONCE[mode](states, tokens), expected)
    half = AT_ONCE[mode](states.bfloat16(), tokens)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, pool(states.bfloat16(), tokens, [mode]))
    assert pooling.POOLINGS.keys() > AT_ONCE.keys()


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_every_operation_of_a_frozen_model_on_cuda_has_the_right_shape(
    activation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meta tensors, which have no storage, stand in for those of the device."""
    for name in (
        "self_attention.has_varlen_kernel",
        "encoder.has_varlen_kernel",
        "inference_layers._has_cublaslt",
    ):
        monkeypatch.setattr(f"sbert_search.models.encoder.{name}", lambda tensor: True)
    monkeypatch.setattr(pooling, "_saves_launches", lambda states: True)
    tokenizer = tiny_tokenizer(tmp_path)
    encoder = tiny_encoder(activation=activation).to("meta", torch.bfloat16)
    model = BiEncoder(encoder, tokenizer, pooling=("mean", "cls"), head=[Normalize()]).eval()
    freeze(encoder)
    assert isinstance(encoder.blocks[0].up, FusedLinear)
    assert encoder.frozen
    assert model.needs_only_starts
    with torch.inference_mode():
        vectors = model(PackedTokens(torch.zeros(12, dtype=torch.int64, device="meta"), LENGTHS))
    assert (vectors.shape, vectors.dtype, vectors.device.type) == ((4, 32), torch.float32, "meta")


def test_gelu_is_fused_by_its_tanh_form_on_cuda_alone() -> None:
    """Here torch's operation computes the exact form, so this shows the product, bias and axes."""
    linear = torch.nn.Linear(5, 7)
    states = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    for activation, plain in (("gelu", F.gelu), ("relu", F.relu)):
        torch.testing.assert_close(FusedLinear(linear, activation)(states), plain(linear(states)))


class Window:
    """Inputs of 10 tokens each."""

    def __init__(self, n: int) -> None:
        self.lengths = np.full(n, 10, np.int32)


def test_a_batch_is_launched_before_the_one_before_it_is_waited_for_except_on_a_cpu() -> None:
    events: list[Any] = []

    def start(window: Window, rows: Rows) -> Any:
        events.append(f"start {rows[0]}")

        def finish() -> NDArray[np.float32]:
            events.append(f"finish {rows[0]}")
            return np.repeat(rows[:, None], 2, axis=1).astype(np.float32)

        return finish

    launcher, out = BatchLauncher(10, "cuda"), np.empty((3, 2), np.float32)
    BatchLauncher(10, "cpu").collect([(np.arange(3), Window(3))], start, np.empty_like(out))
    assert events == ["start 0", "finish 0", "start 1", "finish 1", "start 2", "finish 2"]
    events.clear()
    launcher.collect([(np.arange(3), Window(3))], start, out)
    assert events == ["start 0", "start 1", "finish 0", "start 2", "finish 1", "finish 2"]
    assert out.tolist() == [[0, 0], [1, 1], [2, 2]]
    events.clear()
    windows = [(np.array([2, 0]), Window(2)), (np.array([1]), Window(1))]
    launcher.collect(windows, start, out, advance=events.append)
    assert events == ["start 0", "start 1", "finish 0", 2, "start 0", "finish 1", 1, "finish 0"]
    assert out.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_enough_short_texts_for_a_step_are_tokenised_at_a_time() -> None:
    assert [BatchLauncher(budget, "cuda").window for budget in (2048, 65_536)] == [1024, 4096]


def test_a_launch_without_memory_is_halved_until_it_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lengths = np.full(7, 10, np.int32)
    launcher = BatchLauncher(1000, "cuda:1")

    def start(rows: NDArray[np.int64]) -> Any:
        if len(rows) > 2:
            raise MemoryError
        return lambda: rows[:, None].astype(np.float32)

    batches = list(launcher.launch(lengths, start))
    out = np.concatenate([batch.finish() for batch in batches])
    assert out[:, 0].tolist() == list(range(7))
    assert launcher.budget == 15
    told = "cuda:1 ran out of memory; batches now have at most about 35 tokens."
    assert told in capsys.readouterr().err

    def never(rows: NDArray[np.int64]) -> Any:
        raise MemoryError

    with pytest.raises(ModelError, match="cuda:1 has too little memory for one text of 10 tokens"):
        list(launcher.launch(lengths, never))
