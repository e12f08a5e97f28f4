"""When to look at the dev metrics, which one decides, and when it has stopped getting better."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import nn

from sbert_search.config import unknown_name
from sbert_search.errors import ConfigError
from sbert_search.training.loop.state import RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """How dev metrics steer a run."""

    every: int | None = None  # steps; None: at the end of every epoch. The end of a run always
    figure: str | None = None  # the one that decides; None: the first that is reported
    higher_is_better: bool = True
    patience: int | None = None  # evaluations without a better figure before the run stops

    def __post_init__(self) -> None:
        for name in ("every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"evaluation.{name} is {value}; it must be at least 1.")


@dataclass(frozen=True, eq=False)
class DevMetrics:
    """Computes the dev metrics of a model, and knows their names before.

    Attributes:
        names: Of the metrics.
        compute: Gives them for a model in evaluation mode.
    """

    names: tuple[str, ...]
    compute: Callable[[nn.Module], Mapping[str, float]]

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        """Compute the metrics of a model."""
        return self.compute(model)


def require_metric(config: EvaluationConfig, names: Collection[str]) -> None:
    """Refuse, before anything is computed, a deciding figure that will not be reported.

    Raises:
        ConfigError: Naming those that are.
    """
    if config.figure is not None and config.figure not in names:
        told = unknown_name(config.figure, config.figure, names, "dev figure")
        raise ConfigError(f"{told} Set evaluation.figure to one that this run reports.")


def update_best(config: EvaluationConfig, state: RunState, metrics: Mapping[str, float]) -> bool:
    """Compare the deciding figure with the best one so far, and note the outcome in the state.

    Returns:
        Whether it is the best so far; a figure that is not finite never is.

    Raises:
        ConfigError: There is no such figure.
    """
    name = config.figure or next(iter(metrics))
    require_metric(config, metrics)
    value, best = metrics[name], state.best
    better = best is None or (value > best if config.higher_is_better else value < best)
    if better and math.isfinite(value):
        state.best, state.best_step, state.stale = value, state.step, 0
        return True
    state.stale += 1
    return False
