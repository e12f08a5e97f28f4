"""The interface between the loop and a task: batches of tensors, and losses of a model on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.base.device import to_device

Sum = tuple[Tensor, Tensor | int]
"""A sum over rows, pairs or tokens, and the number of its terms; both add up over batches."""


EQUAL_SCORES = "equal_scores"
"""Name of a metric of ranking losses: the value of the loss if all candidates score the same."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: the input of one forward pass.

    Attributes:
        inputs: Nested tensors, or an object with a method ``to(device)``; only the objective reads
            them.
        rows: Index of each example in the training data, int64 (n,), for error messages.
        counts: Number of terms of each summed loss, by name. They are known before the forward
            pass, so that the loss of each micro-batch can be divided by the count of the step.
        targets: Target of each example, (n, ...); None: ``inputs`` holds the targets, or the loss
            needs none.
    """

    inputs: object
    rows: NDArray[np.int64]
    counts: Mapping[str, int] = field(default_factory=dict)
    targets: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """Copy the tensors to a device."""
        return replace(
            self, inputs=to_device(self.inputs, device), targets=to_device(self.targets, device)
        )


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses and metrics of one batch.

    Attributes:
        sums: Each loss as (sum, count).
        weights: Factor of each loss in the total; 1 for a loss without an entry.
        metrics: Metrics as (sum, count), such as accuracy; no gradient flows through them.
    """

    sums: Mapping[str, Sum]
    weights: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, Sum] = field(default_factory=dict)

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
