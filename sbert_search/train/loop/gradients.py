"""The gradient and the losses of one step, of an in-batch loss by GradCache.

The gradient is summed over the micro-batches of this rank; the losses are summed over all ranks.

An in-batch loss compares all texts of a step with each other. GradCache computes its gradient in
the memory of a micro-batch, a part of a step:

1. Embed the texts of a step micro-batch by micro-batch, without keeping activations.
2. Compute the loss of all embeddings and its gradient with respect to each embedding.
3. Embed every micro-batch again, with the same dropout, and backpropagate the gradients of
   stage 2.

Without dropout, the result equals the gradient of one pass over the whole step, up to rounding. See
"In-batch losses are computed whole on every rank" in docs/decisions.md.

Source: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size (arXiv:2101.06983), section 3.
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
from sbert_search.train.loop.objective import Batch, InBatchObjective, Losses, Objective


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
    """Sums and counts of the losses and metrics of one step, on the device until `read`."""

    ranks: Ranks  # over which `read` sums
    # Expected terms of each loss over all ranks, from `Batch.counts`; {}: an in-batch loss.
    counts: Mapping[str, float] = field(default_factory=dict)
    losses: dict[str, list[Tensor]] = field(default_factory=dict)  # [sum, count]
    metrics: dict[str, list[Tensor]] = field(default_factory=dict)  # [sum, count]
    weights: dict[str, float] = field(default_factory=dict)
    finite: list[Tensor] = field(default_factory=list)  # of each micro-batch: losses or embeddings

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
        """Copy all values to the host in one transfer, and sum them over the ranks."""
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

    Before a loss, a sum over rows, pairs or tokens, is backpropagated, it is divided by the number
    of these terms in the whole step, over all micro-batches and ranks.
    """
    # Counted before the forward pass, so that each loss is divided once, in one pass over the step.
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


def add_in_batch_gradients(
    model: nn.Module, objective: InBatchObjective, batches: Sequence[Batch], context: StepContext
) -> LossTotals:
    """Add this rank's part of the gradient of an in-batch loss to the gradients of the model.

    Each rank backpropagates only through its own embeddings; the sum over the ranks is the gradient
    of the loss. A single micro-batch is embedded once, and its autograd graph is kept.
    """
    parts = []
    for number, batch in enumerate(batches):
        with context.forward(number), torch.set_grad_enabled(len(batches) == 1):
            parts.append(objective.embed(model, batch))
    of_rank = torch.cat([part.detach().float() for part in parts])
    gathered, rows_of_rank = context.ranks.gather(of_rank)
    gathered = gathered.requires_grad_()
    losses = objective.loss(gathered, _gather_targets(batches, context))
    counts = {name: float(count) for name, (_, count) in losses.sums.items()}
    torch.autograd.backward(losses.total(counts))
    assert gathered.grad is not None
    gradients = torch.split(gathered.grad[rows_of_rank], [len(part) for part in parts])
    if len(batches) == 1:
        torch.autograd.backward(parts[0], gradients[0].to(parts[0].dtype))
    else:
        for number, (batch, gradient) in enumerate(zip(batches, gradients, strict=True)):
            with context.forward(number):
                embeddings = objective.embed(model, batch)
            torch.autograd.backward(embeddings, gradient.to(embeddings.dtype))
    totals = LossTotals(Ranks())  # not summed over ranks: each computed the whole loss
    totals.add(losses)
    totals.finite = [part.detach().isfinite().all() for part in parts]
    return totals


def _gather_targets(batches: Sequence[Batch], context: StepContext) -> Tensor | None:
    targets = [batch.targets for batch in batches if batch.targets is not None]
    return context.ranks.gather(torch.cat(targets).to(context.device))[0] if targets else None
