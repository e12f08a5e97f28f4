"""When to compute dev metrics, which one selects the best model, and when to stop early."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from sbert_search.base.cache import digest_of
from sbert_search.config import to_mapping, unknown_name
from sbert_search.errors import ConfigError
from sbert_search.training.loop.state import RunState

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


FEWEST_ROWS = 50
"""Fewest dev rows by which a run chooses. In fewer rows, the smallest difference of two checkpoints
that a sign test shows (6 rows at the level of 5 %) is more than 12 points."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """When a run is evaluated, which dev metric selects the best model, and early stopping.

    The model is always evaluated before the first step and after the last one.
    """

    every: int | None = None  # steps between evaluations; None: after every epoch
    figure: str | None = None  # dev metric that selects the best model; None: the first one
    higher_is_better: bool = True  # whether a higher value of that metric is better
    patience: int | None = None  # evaluations without improvement to stop after; None: never

    def __post_init__(self) -> None:
        for name in ("every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"evaluation.{name} is {value}; it must be at least 1.")


@dataclass(frozen=True, eq=False)
class DevMetrics:
    """Computes the dev metrics of a model.

    The names of the metrics are known before the first evaluation. A wrong ``evaluation.figure`` is
    therefore refused before the run starts.

    Attributes:
        names: Names of the metrics.
        compute: Returns the metrics of a model in evaluation mode, by name.
        fingerprint: Checksum of the dev data; "": there is none, so that changed dev data
            are not noticed when a run resumes.
        losses: Names of the metrics of which a lower value is better.
        rows: Number of dev rows; None: the metrics are means over so many tokens that any number of
            rows can choose.
    """

    names: tuple[str, ...]
    compute: Callable[[nn.Module], Mapping[str, float]]
    fingerprint: str = ""
    losses: frozenset[str] = frozenset()
    rows: int | None = None

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
    """Refuse ``evaluation.figure`` if the run reports no metric of that name.

    Raises:
        ConfigError: The metric is unknown; the message lists the known ones.
    """
    if config.figure is not None and config.figure not in names:
        problem = unknown_name(config.figure, config.figure, names, "dev metric")
        raise ConfigError(f"{problem} Set evaluation.figure to a metric that this run reports.")


def require_direction(
    config: EvaluationConfig, names: Sequence[str], losses: Collection[str]
) -> None:
    """Refuse a run that would publish its worst model.

    Args:
        config: The settings.
        names: The metrics that the run reports.
        losses: Names of the metrics of which a lower value is better.

    Raises:
        ConfigError: A lower value of the selecting metric is better, and ``higher_is_better`` is
            set; or the other way round.
    """
    name = config.figure or names[0]
    if config.higher_is_better == (name in losses):
        better, setting = ("lower", "false") if name in losses else ("higher", "true")
        raise ConfigError(
            f"The best model has the {better} value of the dev metric {name}; set "
            f"evaluation.higher_is_better={setting}, or set evaluation.figure to another metric."
        )


def update_best(config: EvaluationConfig, state: RunState, metrics: Mapping[str, float]) -> bool:
    """Compare the selecting metric with its best value so far, and update the state.

    Of checkpoints with equal values, the latest is the best one: it was trained longest. An equal
    value is no improvement, though, so that patience can end a run.

    Returns:
        Whether this step's checkpoint is the best so far; if the value is not finite, it is not.

    Raises:
        ConfigError: The selecting metric is not among ``metrics``.
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
