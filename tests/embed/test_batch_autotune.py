"""The budget of tokens that is measured: the fastest, kept, and never one that has no memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.embed import batch_autotune
from sbert_search.embed.batch_autotune import BudgetSearch
from sbert_search.embed.embedder import Embedder
from sbert_search.index.index import Index
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
    monkeypatch.setattr(batch_autotune, "WORTH", 0)
    search = BudgetSearch(1000, "key")
    search.see(LENGTHS, machine.work)
    assert search.budget == 1000  # the batches of this embedder stay as they are
    assert max(machine.steps) <= 2000
    done = len(machine.steps)
    search.see(LENGTHS, machine.work)
    later = BudgetSearch(1000, "key")
    later.see(LENGTHS, machine.work)
    assert later.budget == expected
    assert len(machine.steps) == done
    BudgetSearch(1000, "another model").see(LENGTHS, machine.work)
    assert len(machine.steps) > done


def test_a_measurement_waits_until_it_is_a_small_part_of_the_work() -> None:
    machine = Machine(1.0, 0.0)
    search = BudgetSearch(1000, "key")
    calls = 0
    while not machine.steps:
        search.see(LENGTHS, machine.work)  # 4,000 tokens
        calls += 1
    assert 4 * (calls - 1) >= batch_autotune.WORTH
    done = sum(machine.steps)
    assert done <= 0.04 * 4000 * calls
    BudgetSearch(1000, "another").see(LENGTHS[:150], machine.work)
    assert sum(machine.steps) == done


def test_a_damaged_budget_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_autotune, "WORTH", 0)
    machine = Machine(1.0, 0.0)
    monkeypatch.setattr(batch_autotune, "time", machine)
    BudgetSearch(1000, "key").see(LENGTHS, machine.work)
    assert BudgetSearch(1000, "key").budget == 2000
    (file,) = tmp_path.glob("sbert-search/budget/*.json")
    file.write_text("3000")
    assert BudgetSearch(1000, "key").budget == 1000


def test_the_sample_has_texts_of_every_length() -> None:
    lengths = np.repeat(np.array([5, 50, 100], dtype=np.int32), 300)
    rows = batch_autotune._sample(lengths, 4000)
    assert {5, 50, 100} == set(lengths[rows].tolist())
    assert 2000 <= lengths[rows].sum() <= 8000


def test_a_later_embedder_of_the_shape_takes_what_an_earlier_one_measured(
    tmp_path: Path, monkeypatch: Any
) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "twin")
    model: Any = {"device": "cpu", "precision": "fp32"}
    fixed = Embedder(tmp_path / "saved", **model)
    monkeypatch.setattr(batch_autotune, "WORTH", 0)
    monkeypatch.setattr(batch_autotune, "_fastest", lambda budgets, _: budgets[0])
    texts = [f"{'the cat sat on ' * (n % 5)} mat" for n in range(1000)]
    tuned = Embedder(tmp_path / "saved", batch_tokens="auto", **model)
    tuned.encode(["the cat sat"] * 3)
    assert tuned.measured_batch_tokens == fixed.batch_tokens
    np.testing.assert_array_equal(tuned.encode(texts), fixed.encode(texts))
    assert tuned.batch_tokens == fixed.batch_tokens
    later = Embedder(tmp_path / "twin", batch_tokens="auto", **model)
    assert later.batch_tokens == later.measured_batch_tokens == fixed.batch_tokens // 2
    np.testing.assert_allclose(later.encode(texts), fixed.encode(texts), atol=1e-6)
    assert fixed.measured_batch_tokens == 0


@pytest.mark.thorough
def test_an_index_keeps_the_batches_of_its_build(tmp_path: Path, monkeypatch: Any) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "model")
    model: Any = {"device": "cpu", "batch_tokens": "auto"}
    index = Index.from_texts(["a cat"], out=tmp_path / "i", model=tmp_path / "model", **model)
    kept = index.state.manifest.settings.batch_tokens
    assert kept == Embedder(tmp_path / "model", device="cpu", precision="fp32").batch_tokens
    monkeypatch.setattr(batch_autotune, "cached_value", lambda *_: kept // 2)
    assert Embedder(tmp_path / "model", **model).batch_tokens == kept // 2
    assert index.matching_embedder(**model).batch_tokens == kept
    index.add([{"id": "2", "text": "a dog"}], **model)
    assert index.state.manifest.settings.batch_tokens == kept
