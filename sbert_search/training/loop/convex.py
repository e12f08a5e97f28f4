"""Fit a model whose loss is convex in its trained weights, such as a linear layer, to convergence.

The fit is the only step of its run, over all rows. A run that is killed during the fit has no
checkpoint; started again, it ends with the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from sbert_search.runtime.progress import warn
from sbert_search.training.loop.batching import Batches, cut
from sbert_search.training.loop.failure_checks import non_finite_error, not_finite
from sbert_search.training.loop.gradients import StepContext, StepMetrics
from sbert_search.training.loop.objective import Objective
from sbert_search.training.loop.optim import OptimConfig, gradient_norm
from sbert_search.training.loop.state import RunState
from sbert_search.training.loop.step import PlannedStep, Stepper

Penalties = Mapping[Tensor, float]
"""By parameter, the factor of half its squared norm beside the sum of the losses of all rows."""

_MOST_PASSES = 2000  # over the rows
_GRADIENT = 1e-6  # the fit ends if no element of the gradient of the mean loss is larger
_CHANGE = 1e-9  # or if an iteration changes the mean loss by less
_HISTORY = 20  # iterations from which L-BFGS estimates the curvature
_TOKENS = 65536  # of the rows that are computed together


class ConvexFit(Stepper):
    """Fits the trained weights to all rows by L-BFGS, without dropout, in one step.

    The weights start from zero, so the result does not depend on the seed.

    Source: Liu & Nocedal 1989, On the limited memory BFGS method for large scale optimization.
    """

    def __init__(
        self,
        objective: Objective,
        batches: Batches,
        model: nn.Module,
        config: OptimConfig,
        context: StepContext,
        penalties: Penalties,
    ) -> None:
        super().__init__(objective, batches, model, config, context)
        self._loss, self._penalties = objective, penalties
        self._weights = [p for p in model.parameters() if p.requires_grad]

    def plan(self, epoch: int, index: int, micro_size: int | None) -> Iterator[PlannedStep]:
        """Yield steps of all rows without end; each evaluation makes their batches anew."""
        while True:
            rows = np.arange(len(self.batches.lengths))
            yield PlannedStep(epoch, rows, True, micro_size, [], [])
            epoch += 1

    def take(self, planned: PlannedStep, state: RunState, lr: float) -> StepMetrics:
        """Fit the weights and advance the state; every rank fits them to the rows of all ranks.

        Returns:
            The loss at the end, without the penalties, and the norm of the first gradient.

        Raises:
            TrainingError: The loss or a gradient is not finite.
        """
        seen: list[StepMetrics] = []

        def evaluate() -> float:
            value, metrics = self._evaluate(planned)
            if wrong := not_finite(metrics):
                raise non_finite_error(wrong, state.step + 1, lr, planned.rows)
            seen.append(metrics)
            return value

        self.model.eval()
        with torch.no_grad():
            for weight in self._weights:
                weight.zero_()
        solver = torch.optim.LBFGS(
            self._weights,
            lr=lr,
            max_iter=_MOST_PASSES,
            max_eval=_MOST_PASSES,
            tolerance_grad=_GRADIENT,
            tolerance_change=_CHANGE,
            history_size=_HISTORY,
            line_search_fn="strong_wolfe",
        )
        solver.step(evaluate)  # type: ignore[no-untyped-call]
        if len(seen) >= _MOST_PASSES:
            warn(f"The fit has not converged in {len(seen):,} passes over the rows.")
        evaluate()
        self.model.train()
        tokens = int(self.batches.lengths[planned.rows].sum())
        state.advance(len(planned.rows), tokens, ends_epoch=planned.ends_epoch)
        return replace(seen[-1], gradient_norm=seen[0].gradient_norm)

    def _evaluate(self, planned: PlannedStep) -> tuple[float, StepMetrics]:
        """Compute the mean loss, and leave its gradient with the penalties in the weights.

        Returns:
            The mean loss with the penalties, and the metrics without them.
        """
        self.optimizer.zero_grad()
        total, n_terms, name = 0.0, 0, ""
        for part in cut(planned.rows, self.batches.lengths, "tokens", _TOKENS):
            batch = self.batches.collate(part, planned.epoch).to(self.context.device)
            ((name, (value, count)),) = self._loss(self.model, batch).sums.items()
            torch.autograd.backward(value)
            total, n_terms = total + float(value.detach()), n_terms + int(count)
        mean = penalised = total / n_terms
        for weight in self._weights:
            assert weight.grad is not None
            factor = self._penalties.get(weight, 0.0)
            weight.grad.add_(weight.detach(), alpha=factor).div_(n_terms)
            penalised += factor / (2 * n_terms) * float(weight.detach().double().square().sum())
        norm = float(gradient_norm(self.model))
        return penalised, StepMetrics(mean, {name: mean}, {}, norm)
