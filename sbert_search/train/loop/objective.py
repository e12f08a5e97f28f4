"""The interface between the loop and a task: steps of rows, batches of tensors, and losses.

The steps depend only on data, settings, seed and epoch, so all ranks plan the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.base.device import to_device
from sbert_search.base.seed import generator
from sbert_search.declared import Bounds, check
from sbert_search.errors import TrainingError

Sum = tuple[Tensor, Tensor | int]
"""A sum over rows, pairs or tokens, and the number of its terms; both add up over batches."""


EQUAL_SCORES = "equal_scores"
"""Name of a metric of ranking losses: the value of the loss if all candidates score the same."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: the input of one forward pass."""

    inputs: object  # nested tensors, or anything with ``to(device)``; only the objective reads it
    rows: NDArray[np.int64]  # index of each example in the training data, (n,), for messages
    # Terms of each summed loss, known before the forward pass, so that the loss of each micro-batch
    # can be divided by the count of the step.
    counts: Mapping[str, int] = field(default_factory=dict)
    targets: Tensor | None = None  # (n, ...); None: in ``inputs``, or not needed

    def to(self, device: torch.device) -> Batch:
        """Copy the tensors to a device."""
        return replace(
            self, inputs=to_device(self.inputs, device), targets=to_device(self.targets, device)
        )


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses and metrics of one batch."""

    sums: Mapping[str, Sum]
    weights: Mapping[str, float] = field(default_factory=dict)  # factors in the total, by default 1
    metrics: Mapping[str, Sum] = field(default_factory=dict)  # no gradient flows through them

    def total(self, counts: Mapping[str, float]) -> Tensor:
        """Add up the weighted losses, each divided by its count; a loss without terms adds 0."""
        parts = [
            self.weights.get(name, 1.0) / max(counts[name], 1) * value
            for name, (value, _) in self.sums.items()
        ]
        return torch.stack(parts).sum()


class Objective(Protocol):
    """A loss that is a sum over examples or tokens, so the sums of micro-batches add up."""

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Run the model and sum its losses; `Losses.sums` has the same names as `Batch.counts`."""


@runtime_checkable
class InBatchObjective(Protocol):
    """A loss that compares the examples of a step with each other, such as in-batch negatives."""

    def embed(self, model: nn.Module, batch: Batch) -> Tensor:
        """Embed the texts of a micro-batch; float (n, ...), one row per example."""

    def loss(self, embeddings: Tensor, targets: Tensor | None) -> Losses:
        """Compute the loss of all embeddings of a step, over micro-batches and ranks, in fp32."""


Rows = NDArray[np.int64]
"""Row numbers, (n,)."""
Unit = Literal["rows", "tokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchingConfig:
    """How rows are grouped into steps."""

    unit: Unit = "rows"  # unit of size and micro_size
    size: Annotated[int, Bounds(1)] = 32  # rows or tokens of one optimizer step, over all ranks
    # Rows or tokens of a forward pass; None: one pass a step.
    micro_size: Annotated[int | None, Bounds(1)] = None
    # Steps whose rows are sorted by length together; 1 sorts within a step.
    window: Annotated[int, Bounds(1)] = 64

    def __post_init__(self) -> None:
        check(self, table="batching.")


class Batches:
    """The data of a run: which rows each step has, and how a batch is made of them.

    ``lengths`` are the tokens of each row, in all its texts without padding, (n,). ``collate``
    makes the batch of given rows in an epoch. It must be a pure function: its random draws come
    from `base.seed.generator` of (seed, purpose, epoch, row). A subclass overrides `plan` to group
    rows in another way, such as without duplicates.
    """

    def __init__(
        self,
        lengths: NDArray[np.integer] | list[int],
        collate: Callable[[Rows, int], Batch],
        config: BatchingConfig,
        *,
        seed: int,
        fingerprint: str,
    ) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.collate, self.config, self.seed, self.fingerprint = collate, config, seed, fingerprint
        self._planned: tuple[int, list[Rows]] = (-1, [])
        if not len(self.lengths):
            raise TrainingError("There are no rows to train on; check the recipe's data files.")

    def plan(self, epoch: int) -> list[Rows]:
        """Group all rows into the steps of an epoch."""
        order = generator(self.seed, "order", epoch)
        return plan_epoch(self.lengths, self.config, order)

    def n_steps(self, epoch: int) -> int:
        """Count the steps of an epoch."""
        return len(self._steps(epoch))

    def rows(self, epoch: int, index: int) -> Rows:
        """Return all rows of one step of an epoch; each rank takes a part of them."""
        return self._steps(epoch)[index]

    def micro_batches(self, rows: Rows, size: int | None = None) -> list[Rows]:
        """Split a rank's rows of a step into micro-batches; ``size`` None: the configured one."""
        size = size or self.config.micro_size
        return [rows] if size is None else cut(rows, self.lengths, self.config.unit, size)

    def _steps(self, epoch: int) -> list[Rows]:
        if self._planned[0] != epoch:
            self._planned = (epoch, self.plan(epoch))
        return self._planned[1]


def plan_epoch(lengths: Rows, config: BatchingConfig, order: np.random.Generator) -> list[Rows]:
    """Shuffle the rows, sort them by length within windows, cut them into steps, shuffle the steps.

    Attention is fast for texts of equal length. If all rows were sorted together, a step would have
    almost the same rows in every epoch. If the last step is less than half full, its rows join the
    step before it, so that no step is much smaller than the others.
    """
    shuffled = order.permutation(len(lengths))
    windows = cut(shuffled, lengths, config.unit, config.size * config.window)
    in_order = np.concatenate([rows[np.argsort(lengths[rows], kind="stable")] for rows in windows])
    steps = cut(in_order, lengths, config.unit, config.size)
    tail = len(steps[-1]) if config.unit == "rows" else int(lengths[steps[-1]].sum())
    if len(steps) > 1 and 2 * tail < config.size:
        steps[-2:] = [np.concatenate(steps[-2:])]
    return [steps[i] for i in order.permutation(len(steps))]


def cut(rows: Rows, lengths: Rows, unit: Unit, size: int) -> list[Rows]:
    """Cut rows, in order, into groups of at most ``size`` rows or tokens; a longer row is alone."""
    if unit == "rows":
        return [rows[start : start + size] for start in range(0, len(rows), size)]
    ends = np.cumsum(lengths[rows])
    groups, start = [], 0
    while start < len(rows):
        before = ends[start - 1] if start else 0
        stop = max(int(np.searchsorted(ends, before + size, side="right")), start + 1)
        groups.append(rows[start:stop])
        start = stop
    return groups
