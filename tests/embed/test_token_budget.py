"""The token budget after memory ran out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.protocol import Vectors
from sbert_search.embed.token_budget import BatchLauncher, collect_all


def test_a_lower_budget_holds_for_the_other_batches_of_the_same_call() -> None:
    lengths = np.full(64, 10, np.int32)
    tried: list[int] = []

    def start(rows: NDArray[np.int64]) -> Callable[[], Vectors]:
        tried.append(int(lengths[rows].sum()))
        if tried[-1] > 100:
            raise MemoryError
        return lambda: rows[:, None].astype(np.float32)

    launcher = BatchLauncher(160, "cpu")
    out = collect_all(launcher.launch(lengths, start), np.empty((64, 1), np.float32))
    assert out[:, 0].tolist() == list(range(64))
    assert launcher.budget == 80
    assert tried == [160, *[80] * 8]  # memory runs out once, not once for each batch of 160
