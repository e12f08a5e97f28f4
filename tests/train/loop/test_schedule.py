import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.optimization import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from sbert_search.errors import ConfigError
from sbert_search.train.loop.schedule import (
    BudgetConfig,
    RunState,
    Schedule,
    ScheduleConfig,
    ScheduleKind,
    lr_factor,
)
from tests.train.small import settings, token_batches


@pytest.mark.parametrize(("total", "warmup"), [(20, 0), (20, 5), (7, 7), (1, 0), (100, 10)])
@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        ("linear", get_linear_schedule_with_warmup),
        ("cosine", get_cosine_schedule_with_warmup),
        ("constant", lambda o, warmup, total: get_constant_schedule_with_warmup(o, warmup)),
    ],
)
def test_factors_are_those_of_transformers(
    kind: ScheduleKind, reference: Callable[..., Any], total: int, warmup: int
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = reference(optimizer, warmup, total)
    for step in range(total):
        assert lr_factor(kind, step, total, warmup) == scheduler.get_last_lr()[0]
        optimizer.step()
        scheduler.step()


def make(*overrides: str, **budget: Any) -> Schedule:
    config = settings(*overrides, budget=budget)
    return Schedule(config.schedule, config.budget, token_batches(config, rows=96))


def test_budgets_are_counted_in_their_own_unit() -> None:
    state = RunState(step=4, tokens=500, seconds=90.0)
    assert make(steps=5).done(state) == 4
    assert make(epochs=2).total == 2 * 3  # 96 rows of 32
    assert make(epochs=1.5).total == 3 + 2
    ten = settings("batching.size=10", budget={"epochs": 1.1})
    assert Schedule(ten.schedule, ten.budget, token_batches(ten, rows=100)).total == 10 + 1
    assert make(tokens=1000).factor(state) == pytest.approx(500 / 900)
    assert make("schedule.warmup=0", minutes=3).factor(state) == 0.5
    assert not make(tokens=501).over(state)
    assert make(tokens=500).over(state)


def test_warm_up_is_a_share_or_steps() -> None:
    assert make("schedule.warmup=0.1", steps=25).warmup == 3
    assert make("schedule.warmup=7", steps=25).warmup == 7
    assert make("schedule.warmup=0.1", tokens=1000).warmup == 100
    with pytest.raises(ConfigError, match="share"):
        make("schedule.warmup=7", minutes=1)


@pytest.mark.parametrize(("steps", "factors"), [(1, [1.0]), (2, [0.0, 1.0])])
def test_a_share_of_a_short_run_leaves_a_step_to_train(steps: int, factors: list[float]) -> None:
    schedule = make("schedule.warmup=0.1", steps=steps)
    assert [schedule.factor(RunState(step=step)) for step in range(steps)] == factors


@pytest.mark.parametrize(("kind", "middle"), [("linear", 0.5), ("cosine", 0.5), ("constant", 1)])
def test_a_budget_below_a_second_has_the_same_course(kind: str, middle: float) -> None:
    schedule = make(f"schedule.kind={kind}", "schedule.warmup=0.5", minutes=0.01)  # 0.6 s
    seconds = (0.0, 0.15, 0.3, 0.45)
    factors = [schedule.factor(RunState(seconds=each)) for each in seconds]
    assert factors == pytest.approx([0.0, 0.5, 1.0, middle])


def test_exactly_one_budget_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="nothing"):
        make()
    with pytest.raises(ConfigError, match="steps and tokens"):
        make(steps=1, tokens=1)


@pytest.mark.parametrize("warmup", [-1.0, math.nan, math.inf])
def test_a_warm_up_is_finite(warmup: float) -> None:
    with pytest.raises(ConfigError, match=f"schedule.warmup is {warmup}; it must be finite"):
        ScheduleConfig(warmup=warmup)


@pytest.mark.parametrize("unit", ["epochs", "minutes"])
@pytest.mark.parametrize("amount", [0.0, math.nan, math.inf])
def test_a_budget_is_finite(unit: str, amount: float) -> None:
    budget: dict[str, Any] = {unit: amount}
    with pytest.raises(ConfigError, match=f"budget.{unit} is {amount}; it must be finite"):
        BudgetConfig(**budget)
