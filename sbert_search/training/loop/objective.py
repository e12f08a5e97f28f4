"""What the loop asks of a task: batches of tensors, and the losses that a model gets on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.runtime.device import to_device

Sum = tuple[Tensor, Tensor | int]
"""A sum of terms and their count; both add up over micro-batches and ranks."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: what goes through the model at once.

    Attributes:
        inputs: Nested tensors, or anything with a ``to(device)``; only the objective looks inside.
        rows: Row of the data of each example, int64 (n,); named when something goes wrong.
        counts: Terms of each loss that is a sum, by the loss's name. They are known before the
            model runs, so that every micro-batch can be divided by the count of the whole batch.
        targets: What an in-batch loss needs beside the embeddings, (n, ...).
    """

    inputs: Any
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
    """What an objective says of a batch.

    Attributes:
        sums: Each loss as (sum, count).
        weights: Factor of each loss in the total; 1 for one that is not named.
        metrics: Further named metrics as (sum, count), such as accuracy; they get no gradient.
    """

    sums: Mapping[str, Sum]
    weights: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, Sum] = field(default_factory=dict)

    def total(self, counts: Mapping[str, float]) -> Tensor:
        """Add up the weighted losses, each divided by a count; one without terms adds nothing."""
        parts = [
            self.weights.get(name, 1.0) / max(counts[name], 1) * value
            for name, (value, _) in self.sums.items()
        ]
        return torch.stack(parts).sum()


class Objective(Protocol):
    """A loss that is a sum over examples or tokens: micro-batches add up to the batch."""

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Run the model; the names in `Losses.sums` are those of `Batch.counts`."""


@runtime_checkable
class InBatchObjective(Protocol):
    """A loss over all embeddings of a step, in which examples are each other's negatives."""

    def embed(self, model: nn.Module, batch: Batch) -> Tensor:
        """Embed the texts of a micro-batch: float (n, ...), a row for each example."""

    def loss(self, embeddings: Tensor, targets: Tensor | None) -> Losses:
        """Judge the embeddings of the whole step, over micro-batches and ranks, in fp32."""
