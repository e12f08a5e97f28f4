"""The budget and progress of a run: learning rates, dev metrics, and when to stop early."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Literal

from torch import nn

from sbert_search.base.cache import digest_of
from sbert_search.config import to_mapping, unknown_name
from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from sbert_search.train.loop.objective import Batches


ScheduleKind = Literal["linear", "cosine", "constant"]
_Number = Annotated[int | None, Bounds(1)]
_Amount = Annotated[float | None, Bounds(above=0, below=math.inf)]


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetConfig:
    """When a run ends; exactly one of these is set."""

    steps: _Number = None  # optimizer steps
    epochs: _Amount = None  # passes over the training data
    tokens: _Number = None  # tokens without padding, over all ranks
    minutes: _Amount = None  # minutes of training; such a run is not reproducible

    def __post_init__(self) -> None:
        given = [
            n for n in ("steps", "epochs", "tokens", "minutes") if getattr(self, n) is not None
        ]
        if len(given) != 1:
            named = " and ".join(given) or "nothing"
            raise ConfigError(f"budget has {named}; set one of steps, epochs, tokens and minutes.")
        check(self, table="budget.")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """The learning rate over a run, as a factor of optim.lr."""

    kind: ScheduleKind = "linear"  # course after the warm-up; linear and cosine end at 0
    # Below 1: share of the budget; from 1 on: optimizer steps.
    warmup: Annotated[float, Bounds(0, below=math.inf)] = 0.1

    def __post_init__(self) -> None:
        check(self, table="schedule.")


class Schedule:
    """Computes from the state of a run how much of the budget is used, and the learning rate.

    The unit of ``total`` and ``warmup`` is steps, tokens or seconds; epochs are converted to steps.
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

    The values are those of transformers' get_linear_, get_cosine_ and
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


@dataclass(kw_only=True, slots=True)
class RunState:
    """Progress of a run, and its best dev metric so far."""

    step: int = 0  # optimizer steps done
    epoch: int = 0  # epochs done
    index: int = 0  # steps done in this epoch
    tokens: int = 0  # trained on, without padding, over all ranks
    rows: int = 0  # trained on, over all ranks
    seconds: float = 0.0  # of all steps, without evaluations, also before a resume
    processor_seconds: float = 0.0  # CPU time of all threads of the first rank in these steps
    idle_steps: int = 0  # steps whose gradient was 0
    micro_size: int | None = None  # None: as configured; reduced when memory ran out
    best: float | None = None  # best finite value of the dev metric that selects the model
    best_step: int | None = None  # last step with that value; None: there was no finite value
    stale: int = 0  # evaluations since the best value was first reached

    def advance(self, rows: int, tokens: int, *, ends_epoch: bool) -> None:
        """Count one more step."""
        self.step, self.rows, self.tokens = self.step + 1, self.rows + rows, self.tokens + tokens
        self.epoch, self.index = (self.epoch + 1, 0) if ends_epoch else (self.epoch, self.index + 1)


FEWEST_ROWS = 50
"""Fewest dev rows by which a run chooses. In fewer rows, the smallest difference of two checkpoints
that a sign test shows (6 rows at the level of 5 %) is more than 12 points."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """When a run is evaluated, which dev metric selects the best model, and early stopping.

    The model is always evaluated before the first step and after the last one.
    """

    every: _Number = None  # steps between evaluations; None: after every epoch
    figure: str | None = None  # dev metric that selects the best model; None: the first one
    higher_is_better: bool = True  # whether a higher value of that metric is better
    patience: _Number = None  # evaluations without improvement to stop after; None: never

    def __post_init__(self) -> None:
        check(self, table="evaluation.")


@dataclass(frozen=True, eq=False)
class DevMetrics:
    """Computes the dev metrics of a model."""

    names: tuple[str, ...]  # known before the run, so a wrong evaluation.figure is refused then
    compute: Callable[[nn.Module], Mapping[str, float]]  # of a model in evaluation mode
    fingerprint: str = ""  # of the dev data; "": changed data are not noticed when a run resumes
    losses: frozenset[str] = frozenset()  # names of the metrics of which a lower value is better
    rows: int | None = None  # None: means over so many tokens that any number of rows can choose

    @property
    def can_choose(self) -> bool:
        """Whether there are enough dev rows to choose a checkpoint, or a setting, by them."""
        return self.rows is None or self.rows >= FEWEST_ROWS

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        """Compute the metrics of a model."""
        return self.compute(model)


def fingerprint_of(rows: Iterable[DataclassInstance]) -> str:
    """Return a checksum of dev rows, without their file and line."""
    return digest_of([{**to_mapping(row), "source": None} for row in rows])


def require_metric(config: EvaluationConfig, names: Collection[str]) -> None:
    """Refuse ``evaluation.figure`` if the run reports no metric of that name."""
    if config.figure is not None and config.figure not in names:
        problem = unknown_name(config.figure, config.figure, names, "dev metric")
        raise ConfigError(f"{problem} Set evaluation.figure to a metric that this run reports.")


def require_direction(
    config: EvaluationConfig, names: Sequence[str], losses: Collection[str]
) -> None:
    """Refuse a run that would publish its worst model; of ``losses``, a lower value is better."""
    name = config.figure or names[0]
    if config.higher_is_better == (name in losses):
        better, setting = ("lower", "false") if name in losses else ("higher", "true")
        raise ConfigError(
            f"The best model has the {better} value of the dev metric {name}; set "
            f"evaluation.higher_is_better={setting}, or set evaluation.figure to another metric."
        )


def update_best(config: EvaluationConfig, state: RunState, metrics: Mapping[str, float]) -> bool:
    """Compare the selecting metric with its best value so far, and update the state.

    Return whether this step's checkpoint is the best: of equal finite values the latest, which was
    trained longest. An equal value is no improvement, though, so that patience can end a run.
    """
    name = config.figure or next(iter(metrics))
    require_metric(config, metrics)
    value, best = metrics[name], state.best
    better = best is None or (value > best if config.higher_is_better else value < best)
    if better and math.isfinite(value):
        state.best, state.best_step, state.stale = value, state.step, 0
        return True
    state.stale += 1
    if value == best:
        state.best_step = state.step
    return value == best


def has_diverged(config: EvaluationConfig, metrics: Mapping[str, float]) -> bool:
    """Whether the metric that selects the best model is a loss that is not finite.

    Other metrics may be undefined for a sound model, such as a correlation of equal scores.
    """
    value = metrics[config.figure or next(iter(metrics))]
    return not config.higher_is_better and not math.isfinite(value)
