"""What only CUDA takes, as far as it runs without (its kernel: encoder/test_attention)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sbert_search.embedding.steps import Steps
from sbert_search.encoder.packed import PackedTokens
from sbert_search.errors import ModelError
from sbert_search.models import pooling
from sbert_search.models.pooling import AT_ONCE, pool

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


def test_a_batch_is_launched_before_the_one_before_it_is_waited_for() -> None:
    events: list[str] = []

    def start(rows: NDArray[np.int64]) -> Any:
        events.append(f"start {rows[0]}")

        def finish() -> NDArray[np.float32]:
            events.append(f"finish {rows[0]}")
            return np.repeat(rows[:, None], 2, axis=1).astype(np.float32)

        return finish

    out = Steps(10, "cuda").run(np.full(3, 10, np.int32), 2, start)
    assert events == ["start 0", "start 1", "finish 0", "start 2", "finish 1", "finish 2"]
    assert out.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_a_launch_without_memory_is_halved_until_it_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lengths = np.full(7, 10, np.int32)
    steps = Steps(1000, "cuda:1")

    def start(rows: NDArray[np.int64]) -> Any:
        if len(rows) > 2:
            raise MemoryError
        return lambda: rows[:, None].astype(np.float32)

    assert steps.run(lengths, 1, start)[:, 0].tolist() == list(range(7))
    assert steps.budget == 15
    assert "cuda:1 is out of memory; now 35 tokens a step." in capsys.readouterr().err

    def never(rows: NDArray[np.int64]) -> Any:
        raise MemoryError

    with pytest.raises(ModelError, match="cuda:1 has too little memory for one text of 10 tokens"):
        steps.run(lengths, 1, never)
