"""The token budget after memory ran out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.protocol import Vectors
from sbert_search.embed.token_budget import BatchLauncher, Rows


def test_a_lower_budget_holds_for_the_other_batches_of_the_same_call() -> None:
    lengths = np.full(64, 10, np.int32)
    tried: list[int] = []

    def start(rows: NDArray[np.int64]) -> Callable[[], Vectors]:
        tried.append(int(lengths[rows].sum()))
        if tried[-1] > 100:
            raise MemoryError
        return lambda: rows[:, None].astype(np.float32)

    launcher = BatchLauncher(160, "cpu")
    out = np.empty(64, np.float32)
    for batch in launcher.launch(lengths, start):
        out[batch.rows] = batch.finish()[:, 0]
    assert out.tolist() == list(range(64))
    assert launcher.budget == 80
    assert tried == [160, *[80] * 8]  # memory runs out once, not once for each batch of 160


class Numbers:
    """Tokenised inputs, ten tokens each, that are their own indices."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.lengths = rows, np.full(len(rows), 10, np.int32)


def test_every_input_is_computed_if_the_budget_falls_between_windows() -> None:
    def start(inputs: Numbers, rows: Rows) -> Callable[[], Vectors]:
        if len(rows) > 1000:
            raise MemoryError
        return lambda: inputs.rows[rows, None].astype(np.float32)

    launcher, out = BatchLauncher(64_000, "cpu"), np.full((9_000, 1), np.nan, np.float32)
    assert launcher.window == 4000
    launcher.compute([1] * len(out), Numbers, start, out)
    assert launcher.window < 4000
    assert out[:, 0].tolist() == list(range(len(out)))
