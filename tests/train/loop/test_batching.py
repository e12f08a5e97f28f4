import numpy as np
import pytest

from sbert_search.base.seed import generator
from sbert_search.errors import ConfigError, TrainingError
from sbert_search.train.loop.objective import Batches, BatchingConfig, Unit, cut, plan_epoch
from tests.train.small import settings, token_batches

LENGTHS = np.random.default_rng(0).integers(1, 100, 1000)


@pytest.mark.parametrize(("unit", "size"), [("rows", 32), ("tokens", 1500)])
def test_every_row_comes_once_an_epoch_in_an_order_of_its_own(unit: Unit, size: int) -> None:
    config = BatchingConfig(unit=unit, size=size, window=4)
    epochs = [plan_epoch(LENGTHS, config, generator(1, "order", e)) for e in (0, 1, 0)]
    for steps in epochs:
        assert sorted(np.concatenate(steps).tolist()) == list(range(1000))
    assert all(np.array_equal(a, b) for a, b in zip(epochs[0], epochs[2], strict=True))
    assert not np.array_equal(np.concatenate(epochs[0]), np.concatenate(epochs[1]))
    first = {frozenset(step.tolist()) for step in epochs[0]}
    assert first.isdisjoint(frozenset(step.tolist()) for step in epochs[1])


def test_steps_hold_rows_of_like_length_and_come_in_no_order_of_length() -> None:
    config = BatchingConfig(size=20, window=50)
    steps = plan_epoch(LENGTHS, config, generator(1, "order", 0))
    spread = [int(np.ptp(LENGTHS[step])) for step in steps]
    assert np.mean(spread) < 5
    means = [LENGTHS[step].mean() for step in steps]
    assert means != sorted(means)


def test_a_token_budget_holds_for_every_step_but_one_with_the_tail() -> None:
    config = BatchingConfig(unit="tokens", size=1500, window=4)
    steps = plan_epoch(LENGTHS, config, generator(1, "order", 0))
    sizes = sorted(int(LENGTHS[step].sum()) for step in steps)
    assert sizes[-2] <= 1500
    assert sizes[-1] <= 2250
    assert np.median(sizes) > 1400


def test_a_short_tail_joins_the_step_before_it() -> None:
    def sizes(rows: int) -> list[int]:
        config = BatchingConfig(size=10)
        plan = plan_epoch(np.ones(rows, np.int64), config, generator(0, "order", 0))
        return sorted(len(step) for step in plan)

    assert sizes(24) == [10, 14]
    assert sizes(25) == [5, 10, 10]
    assert sizes(3) == [3]


def test_cutting_keeps_the_order_and_lets_a_long_row_stand_alone() -> None:
    lengths = np.array([5, 1, 1, 9, 2, 2])
    rows = np.array([3, 0, 1, 2, 5, 4])
    assert [p.tolist() for p in cut(rows, lengths, "tokens", 7)] == [[3], [0, 1, 2], [5, 4]]
    assert [p.tolist() for p in cut(rows, lengths, "rows", 4)] == [[3, 0, 1, 2], [5, 4]]


def test_batches_are_a_function_of_epoch_and_step_alone() -> None:
    config = settings("batching.size=16")
    walked = token_batches(config)
    for epoch in range(3):
        for step in range(walked.n_steps(epoch)):
            walked.rows(epoch, step)
    jumped = token_batches(config)
    assert np.array_equal(jumped.rows(2, 5), walked.rows(2, 5))


def test_another_seed_gives_another_order() -> None:
    first, second = (token_batches(settings(f"seed={seed}")).plan(0) for seed in (1, 2))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))


def test_no_rows_and_no_size_are_refused() -> None:
    config = BatchingConfig()
    with pytest.raises(TrainingError, match="no rows"):
        Batches(
            [],
            lambda rows, epoch: pytest.fail("no rows to collate"),
            config,
            seed=0,
            fingerprint="",
        )
    for name in ("size", "micro_size", "window"):
        with pytest.raises(ConfigError, match=f"batching.{name} is 0"):
            settings(f"batching.{name}=0")
