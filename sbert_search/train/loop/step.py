"""One optimizer step: collate rows, compute gradients, check them, update the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from sbert_search.base.memory import FreedMemory
from sbert_search.base.progress import warn
from sbert_search.errors import TrainingError
from sbert_search.train.loop.failure_checks import non_finite_error, not_finite, out_of_memory
from sbert_search.train.loop.gradients import (
    LossTotals,
    StepContext,
    StepMetrics,
    add_gradients,
    add_in_batch_gradients,
)
from sbert_search.train.loop.objective import Batch, Batches, InBatchObjective, Objective, Rows, cut
from sbert_search.train.loop.optim import (
    OptimConfig,
    TableSteps,
    clip_divisor,
    clipped_step,
    gradient_norm,
    make_optimizer,
)
from sbert_search.train.loop.schedule import RunState

Penalties = Mapping[Tensor, float]
"""By parameter, the factor of half its squared norm beside the sum of the losses of all rows."""

_MOST_PASSES = 2000  # over the rows
_GRADIENT = 1e-6  # the fit ends if no element of the gradient of the mean loss is larger
_CHANGE = 1e-9  # or if an iteration changes the mean loss by less
_HISTORY = 20  # iterations from which L-BFGS estimates the curvature
_TOKENS = 65536  # of the rows that are computed together


@dataclass(slots=True)
class PlannedStep:
    """A step with its collated micro-batches."""

    epoch: int
    rows: Rows  # over all ranks
    ends_epoch: bool
    micro_size: int | None  # `RunState.micro_size` with which the batches were made
    parts: list[Rows]  # rows of each micro-batch of this rank
    batches: list[Batch]


class Stepper:
    """Takes the steps of a run on one rank."""

    def __init__(
        self,
        objective: Objective | InBatchObjective,
        batches: Batches,
        model: nn.Module,
        config: OptimConfig,
        context: StepContext,
    ) -> None:
        self.objective, self.batches, self.model = objective, batches, model
        self.config, self.context = config, context
        self.optimizer = make_optimizer(model, config)
        on_cpu = context.device.type == "cpu"
        self._freed = FreedMemory() if on_cpu else None
        # Several ranks need dense gradients, as they sum them; on other devices these cost little.
        by_row = on_cpu and context.ranks.world == 1
        self._tables = TableSteps(model if by_row else nn.Module())

    def plan(self, epoch: int, index: int, micro_size: int | None) -> Iterator[PlannedStep]:
        """Yield steps without end, from number ``index`` of an epoch on; runs ahead in a thread."""
        while True:
            last = self.batches.n_steps(epoch) - 1
            for number in range(index, last + 1):
                rows = self.batches.rows(epoch, number)
                parts, batches = self._collate(rows, epoch, micro_size)
                yield PlannedStep(epoch, rows, number == last, micro_size, parts, batches)
            epoch, index = epoch + 1, 0

    def take(self, planned: PlannedStep, state: RunState, lr: float) -> StepMetrics:
        """Update the weights once, and not if a TrainingError is raised; advance the state."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        totals = self._gradients(planned, state)
        self.context.ranks.sum_gradients(self.model.parameters())
        of_tables = self._tables.take_gradients()
        norm = gradient_norm(self.model, [gradient.values() for gradient in of_tables.values()])
        metrics = totals.read(norm)
        if wrong := not_finite(metrics):
            raise non_finite_error(wrong, state.step + 1, lr, totals.non_finite_rows(planned.parts))
        clipped_step(self.optimizer, norm, self.config.clip)
        self._tables.step(self.optimizer, of_tables, clip_divisor(norm, self.config.clip))
        tokens = int(self.batches.lengths[planned.rows].sum())
        state.advance(len(planned.rows), tokens, ends_epoch=planned.ends_epoch)
        if self._freed is not None:
            self._freed.after_step()
        return metrics

    def _gradients(self, planned: PlannedStep, state: RunState) -> LossTotals:
        """Run forward and backward; if memory runs out on a single rank, halve the micro-batch."""
        context = replace(self.context, step=state.step)
        while True:
            if planned.micro_size != state.micro_size:  # halved after this step was planned
                planned.micro_size = state.micro_size
                planned.parts, planned.batches = self._collate(
                    planned.rows, planned.epoch, state.micro_size
                )
            self.optimizer.zero_grad()
            try:
                batches = [batch.to(context.device) for batch in planned.batches]
                with self._tables.sparse_gradients():
                    if isinstance(self.objective, InBatchObjective):
                        return add_in_batch_gradients(self.model, self.objective, batches, context)
                    return add_gradients(self.model, self.objective, batches, context)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or context.ranks.world > 1:
                    raise
            # Not in the handler: there the traceback keeps the tensors of the step in memory.
            state.micro_size = self._halved_size(planned)

    def _halved_size(self, planned: PlannedStep) -> int:
        tokens = [int(self.batches.lengths[part].sum()) for part in planned.parts]
        most_rows = max(map(len, planned.parts))
        if most_rows == 1 and isinstance(self.objective, InBatchObjective):
            raise TrainingError(
                f"A step of {len(planned.rows)} rows does not fit in memory, even with one row in "
                "each forward pass, because this loss compares all rows of a step. Make "
                "batching.size smaller, shorten the texts or use a smaller model."
            )
        if most_rows == 1:
            row = planned.parts[tokens.index(max(tokens))][0]
            raise TrainingError(
                f"Row {row} with {max(tokens)} tokens does not fit in memory, even in a batch of "
                "its own; shorten the texts or use a smaller model."
            )
        self.optimizer.zero_grad()
        if self.context.device.type == "cuda":
            torch.cuda.empty_cache()
        config = self.batches.config
        if config.unit == "rows":
            return most_rows // 2
        # The largest part may be one row longer than the size; half of it may not lower the size.
        largest = min(max(tokens), planned.micro_size or config.micro_size or max(tokens))
        return max(1, largest // 2)

    def _collate(self, rows: Rows, epoch: int, size: int | None) -> tuple[list[Rows], list[Batch]]:
        ranks = self.context.ranks
        rows_of_rank = rows[ranks.rank :: ranks.world]
        if not len(rows_of_rank):
            raise TrainingError(
                f"A step of {len(rows)} rows is too small for {ranks.world} ranks; "
                "make batching.size larger."
            )
        parts = self.batches.micro_batches(rows_of_rank, size)
        return parts, [self.batches.collate(part, epoch) for part in parts]


class ConvexFit(Stepper):
    """Fits the trained weights to all rows by L-BFGS, without dropout, in one step.

    The loss must be convex in these weights, such as those of a linear layer. They start from zero,
    so the result does not depend on the seed. A run that is killed during the fit has no
    checkpoint; started again, it ends with the same weights.

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

        The metrics have the loss at the end, without the penalties, and the norm of the first
        gradient.
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
        """Return the mean loss with penalties, leaving its gradient, and metrics without them."""
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
