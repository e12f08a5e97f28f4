"""The budget of tokens that is measured: the fastest, kept, and never one that has no memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.embedding import batch_autotune
from sbert_search.embedding.batch_autotune import find_budget
from sbert_search.embedding.embedder import Embedder
from tests.models.tiny import tiny_bi_encoder

LENGTHS = np.full(400, 10, dtype=np.int32)


class Machine:
    """A clock that moves by what a step costs, and the steps that it saw."""

    def __init__(self, seconds_a_step: float, seconds_a_square: float, memory: int = 10**9) -> None:
        self.step, self.square, self.memory = seconds_a_step, seconds_a_square, memory
        self.now, self.steps = 0.0, list[int]()

    def perf_counter(self) -> float:
        return self.now

    def work(self, rows: NDArray[np.int64]) -> None:
        tokens = int(LENGTHS[rows].sum())
        if tokens > self.memory:
            raise MemoryError
        self.steps.append(tokens)
        self.now += self.step + self.square * tokens**2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return iter(())


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(1.0, 0.0), 2000),  # each step costs the same: fewer are better
        (Machine(0.0, 1.0), 500),  # a step costs the square of its tokens: small ones are better
        (Machine(1.0, 0.0, memory=1500), 1000),
        (Machine(1.0, 0.0, memory=700), 500),
        (Machine(0.0, 0.0), 1000),  # all alike
    ],
)
def test_the_fastest_budget_is_found_once(
    machine: Machine, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_autotune, "time", machine)
    assert find_budget(1000, LENGTHS, machine.work, "key") == expected
    assert max(machine.steps) <= 2000
    done = len(machine.steps)
    assert find_budget(1000, LENGTHS, machine.work, "key") == expected
    assert len(machine.steps) == done
    find_budget(1000, LENGTHS, machine.work, "another model")
    assert len(machine.steps) > done


def test_the_sample_has_texts_of_every_length() -> None:
    lengths = np.repeat(np.array([5, 50, 100], dtype=np.int32), 300)
    rows = batch_autotune._sample(lengths, 4000)
    assert {5, 50, 100} == set(lengths[rows].tolist())
    assert 2000 <= lengths[rows].sum() <= 8000


def test_an_embedder_measures_over_many_texts_and_gives_the_same_vectors(
    tmp_path: Path, monkeypatch: Any
) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    fixed = Embedder(tmp_path / "saved", device="cpu", precision="fp32")
    tuned = Embedder(tmp_path / "saved", device="cpu", precision="fp32", batch_tokens="auto")
    monkeypatch.setattr("sbert_search.embedding.batch_autotune.find_budget", lambda *_: 512)
    tuned.encode(["the cat sat"] * 3)
    assert tuned.batch_tokens == fixed.batch_tokens
    texts = [f"{'the cat sat on ' * (n % 5)} mat" for n in range(1000)]
    np.testing.assert_allclose(tuned.encode(texts), fixed.encode(texts), atol=1e-6)
    assert tuned.batch_tokens == 512
