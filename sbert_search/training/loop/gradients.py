"""The gradient and the losses of one step.

The gradient is summed over the micro-batches of this rank; the losses are summed over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.base.device import autocast
from sbert_search.base.distributed import Ranks
from sbert_search.base.seed import seed_all
from sbert_search.errors import TrainingError
from sbert_search.training.loop.objective import Batch, Losses, Objective


@dataclass(frozen=True, slots=True)
class StepContext:
    """Device, dtype of matrix products, ranks, seed, and number of the step, from 0."""

    device: torch.device
    dtype: torch.dtype
    ranks: Ranks
    seed: int
    step: int = 0

    def forward(self, micro: int) -> AbstractContextManager[object]:
        """Seed dropout by (seed, step, rank, micro-batch); return the context of autocast."""
        seed_all(self.seed, "dropout", self.step, self.ranks.rank, micro)
        return autocast(self.device, self.dtype)


@dataclass(slots=True)
class LossTotals:
    """Sums and counts of the losses and metrics of one step; they stay on the device until `read`.

    Attributes:
        ranks: The ranks over which `read` sums.
        counts: Expected number of terms of each loss over all ranks, from `Batch.counts`. Empty for
            in-batch losses, which have no such counts.
        finite: For each micro-batch, whether its losses are finite; for in-batch losses, whether
            its embeddings are finite.
    """

    ranks: Ranks
    counts: Mapping[str, float] = field(default_factory=dict)
    losses: dict[str, list[Tensor]] = field(default_factory=dict)  # [sum, count]
    metrics: dict[str, list[Tensor]] = field(default_factory=dict)  # [sum, count]
    weights: dict[str, float] = field(default_factory=dict)
    finite: list[Tensor] = field(default_factory=list)

    def add(self, losses: Losses) -> None:
        """Add the losses and metrics of one micro-batch."""
        self.weights.update(losses.weights)
        self.finite.append(
            torch.stack([v.detach() for v, _ in losses.sums.values()]).isfinite().all()
        )
        for table, sums in ((self.losses, losses.sums), (self.metrics, losses.metrics)):
            for name, (total, count) in sums.items():
                value = total.detach().float()
                pair = [value, torch.as_tensor(count, dtype=torch.float32, device=value.device)]
                so_far = table.get(name)
                table[name] = [a + b for a, b in zip(so_far, pair, strict=True)] if so_far else pair

    def non_finite_rows(self, rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the rows of the micro-batches that are not finite; all rows if all are finite."""
        wrong = [part for part, good in zip(rows, self.finite, strict=True) if not good]
        return np.concatenate(wrong or list(rows))

    def read(self, norm: Tensor) -> StepMetrics:
        """Copy all values to the host in one transfer, and sum losses and metrics over the ranks.

        Args:
            norm: Norm of the gradient that is summed over the ranks, a scalar tensor.

        Raises:
            TrainingError: The number of terms of a loss differs from `Batch.counts`.
        """
        pairs = [*self.losses.values(), *self.metrics.values()]
        fetched = torch.stack([norm.float(), *(v for pair in pairs for v in pair)]).tolist()
        values = self.ranks.sum(fetched[1:])
        names = [*self.losses, *self.metrics]
        means = {}
        for name, total, count in zip(names, values[::2], values[1::2], strict=True):
            if self.counts.get(name, count) != count:
                raise TrainingError(
                    f"The loss {name} summed {count:g} terms, but its batches counted "
                    f"{self.counts[name]:g}; make Batch.counts and the objective agree."
                )
            means[name] = total / count if count else 0.0
        return StepMetrics(
            loss=sum(self.weights.get(name, 1.0) * means[name] for name in self.losses),
            losses={name: means[name] for name in self.losses},
            metrics={name: means[name] for name in self.metrics},
            gradient_norm=fetched[0],
        )


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Loss, metrics and gradient norm of one step over all micro-batches and ranks."""

    loss: float
    losses: Mapping[str, float]
    metrics: Mapping[str, float]
    gradient_norm: float  # before clipping


def add_gradients(
    model: nn.Module, objective: Objective, batches: Sequence[Batch], context: StepContext
) -> LossTotals:
    """Add the gradients of all micro-batches of this rank to the gradients of the model.

    Each loss is a sum over rows, pairs or tokens. Before it is backpropagated, it is divided by the
    number of these terms in the whole step, over all micro-batches and ranks.

    Raises:
        TrainingError: The names of the losses differ from those in `Batch.counts`.
    """
    # See "Counts before the forward pass" in docs/decisions.md.
    names = sorted(batches[0].counts)
    counted = context.ranks.sum([sum(batch.counts[name] for batch in batches) for name in names])
    counts = dict(zip(names, counted, strict=True))
    totals = LossTotals(context.ranks, counts)
    for number, batch in enumerate(batches):
        with context.forward(number):
            losses = objective(model, batch)
        if set(losses.sums) != set(names):
            raise TrainingError(
                f"The objective returned the losses {sorted(losses.sums)}, but Batch.counts has "
                f"{names}; make them agree."
            )
        torch.autograd.backward(losses.total(counts))
        totals.add(losses)
    return totals
