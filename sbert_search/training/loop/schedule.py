"""The budget of a run, and the learning-rate schedule over it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from sbert_search.errors import ConfigError

if TYPE_CHECKING:
    from sbert_search.training.loop.batching import Batches
    from sbert_search.training.loop.state import RunState

ScheduleKind = Literal["linear", "cosine", "constant"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetConfig:
    """When a run ends; exactly one of these is set."""

    steps: int | None = None  # optimizer steps
    epochs: float | None = None  # passes over the training data
    tokens: int | None = None  # tokens without padding, over all ranks
    minutes: float | None = None  # minutes of training; such a run is not reproducible

    def __post_init__(self) -> None:
        given = [
            n for n in ("steps", "epochs", "tokens", "minutes") if getattr(self, n) is not None
        ]
        if len(given) != 1:
            named = " and ".join(given) or "nothing"
            raise ConfigError(f"budget has {named}; set one of steps, epochs, tokens and minutes.")
        if not 0 < getattr(self, given[0]) < math.inf:
            raise ConfigError(
                f"budget.{given[0]} is {getattr(self, given[0])}; it must be finite, and above 0."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """The learning rate over a run, as a factor of optim.lr."""

    kind: ScheduleKind = "linear"  # course after the warm-up; linear and cosine end at 0
    warmup: float = 0.1  # below 1: share of the budget; from 1 on: optimizer steps

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < math.inf:
            raise ConfigError(
                f"schedule.warmup is {self.warmup}; it must be finite, and 0 or more."
            )


class Schedule:
    """Computes from the state of a run how much of the budget is used, and the learning rate.

    The unit of the budget is steps, tokens or seconds; epochs are converted to steps.

    Attributes:
        total: The whole budget: steps, tokens or seconds.
        in_steps: Whether the unit is steps.
        warmup: The part of the budget in which the learning rate rises.
    """

    def __init__(self, config: ScheduleConfig, budget: BudgetConfig, batches: Batches) -> None:
        self.config, self.budget = config, budget
        self.total = _total(budget, batches)
        self.in_steps = budget.steps is not None or budget.epochs is not None
        if config.warmup >= 1 and not self.in_steps:
            raise ConfigError(
                f"schedule.warmup is {config.warmup:g} steps, but the budget is in "
                f"{'tokens' if budget.tokens else 'minutes'}; set it to a share below 1."
            )
        if config.warmup >= 1:
            self.warmup: float = math.ceil(config.warmup)
        else:
            share = config.warmup * self.total
            # At least one step comes after the warm-up; in a run of one step, lr would else be 0.
            self.warmup = min(math.ceil(share), self.total - 1) if self.in_steps else share

    def done(self, state: RunState) -> float:
        """Return the used part of the budget: steps, tokens or seconds."""
        if self.budget.tokens is not None:
            return state.tokens
        return state.step if self.budget.minutes is None else state.seconds

    def over(self, state: RunState) -> bool:
        """Whether the whole budget is used."""
        return self.done(state) >= self.total

    def factor(self, state: RunState) -> float:
        """Return the factor of `OptimConfig.lr` for the next step."""
        return lr_factor(self.config.kind, self.done(state), self.total, self.warmup)


def lr_factor(kind: ScheduleKind, done: float, total: float, warmup: float) -> float:
    """Rise linearly from 0 to 1; then decay to 0 linearly or as a half cosine, or stay at 1.

    Args:
        kind: Shape after the warm-up.
        done: Steps (or tokens, or seconds) before this one.
        total: Steps (or tokens, or seconds) of the whole run.
        warmup: Steps (or tokens, or seconds) of the warm-up.

    Source: the values of transformers' get_linear_, get_cosine_ and
    get_constant_schedule_with_warmup.
    """
    if done < warmup:
        return done / warmup
    if kind == "constant":
        return 1.0
    if done >= total:
        return 0.0
    if kind == "linear":
        return (total - done) / (total - warmup)
    progress = (done - warmup) / (total - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


def _total(budget: BudgetConfig, batches: Batches) -> float:
    """Return the whole budget: steps, tokens or seconds."""
    if budget.steps is not None:
        return budget.steps
    if budget.tokens is not None:
        return budget.tokens
    if budget.minutes is not None:
        return 60 * budget.minutes
    assert budget.epochs is not None
    epochs = Fraction(str(budget.epochs))  # 1.1 as it is written; the float 1.1 is a little larger
    whole, part = int(epochs), epochs % 1
    steps = sum(batches.n_steps(epoch) for epoch in range(whole))
    return steps + (math.ceil(part * batches.n_steps(whole)) if part else 0)
