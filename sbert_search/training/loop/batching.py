"""Which rows make up each step: a function of (seed, epoch, step), the same on every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import ConfigError, TrainingError
from sbert_search.runtime.seed import generator
from sbert_search.training.loop.objective import Batch

Rows = NDArray[np.int64]
Unit = Literal["rows", "tokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchingConfig:
    """How rows are grouped into steps."""

    unit: Unit = "rows"  # what size and micro_size count
    size: int = 32  # of one optimizer step, over all ranks
    micro_size: int | None = None  # of one forward pass on one rank; None: the rank's whole share
    window: int = 64  # steps whose rows are sorted by length together; 1 sorts within a step

    def __post_init__(self) -> None:
        for name in ("size", "micro_size", "window"):
            if (getattr(self, name) or 1) < 1 or getattr(self, name) == 0:
                raise ConfigError(
                    f"batching.{name} is {getattr(self, name)}; it must be at least 1."
                )


class Batches:
    """The data of a run: rows by step, and the tensors of given rows.

    Subclass it and replace `plan` to group rows in another way, such as without duplicates.
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
        """Take the data.

        Args:
            lengths: Real tokens of each row, over all its texts, (n,).
            collate: Makes the batch of some rows in an epoch, a pure function: what it draws, it
                draws from `runtime.seed.generator` of (seed, purpose, epoch, row).
            config: How to group the rows.
            seed: Of the order.
            fingerprint: Checksum of the data; a checkpoint made with another is refused.

        Raises:
            TrainingError: There are no rows.
        """
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.collate, self.config, self.seed, self.fingerprint = collate, config, seed, fingerprint
        self._planned: tuple[int, list[Rows]] = (-1, [])
        if not len(self.lengths):
            raise TrainingError("There are no rows to train on; look at the data named.")

    def plan(self, epoch: int) -> list[Rows]:
        """Group all rows into the steps of an epoch."""
        order = generator(self.seed, "order", epoch)
        return plan_epoch(self.lengths, self.config, order)

    def n_steps(self, epoch: int) -> int:
        """Count the steps of an epoch."""
        return len(self._steps(epoch))

    def rows(self, epoch: int, index: int) -> Rows:
        """Give the rows of one step, over all ranks."""
        return self._steps(epoch)[index]

    def micro_batches(self, rows: Rows, size: int | None = None) -> list[Rows]:
        """Cut a rank's share of a step into what goes through the model at once.

        Args:
            rows: The share.
            size: In place of the configured one, if not None.
        """
        size = size or self.config.micro_size
        return [rows] if size is None else cut(rows, self.lengths, self.config.unit, size)

    def _steps(self, epoch: int) -> list[Rows]:
        if self._planned[0] != epoch:
            self._planned = (epoch, self.plan(epoch))
        return self._planned[1]


def plan_epoch(lengths: Rows, config: BatchingConfig, order: np.random.Generator) -> list[Rows]:
    """Shuffle the rows, sort them by length within windows, cut them into steps, shuffle the steps.

    Neighbours in length share a step, so that attention works on groups of equal length, while a
    window is wide enough that the company a row keeps changes with every epoch. A short tail joins
    the step before it: every row comes once an epoch, and no step is too small to share out.

    Args:
        lengths: Tokens of each row, (n,).
        config: Size of a step and of a window.
        order: The generator of this epoch.

    Returns:
        The rows of each step.
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
    """Cut rows, in their order, into pieces of at most `size` rows or tokens.

    A single row of more tokens is a piece of its own.
    """
    if unit == "rows":
        return [rows[start : start + size] for start in range(0, len(rows), size)]
    ends = np.cumsum(lengths[rows])
    pieces, start = [], 0
    while start < len(rows):
        before = ends[start - 1] if start else 0
        stop = max(int(np.searchsorted(ends, before + size, side="right")), start + 1)
        pieces.append(rows[start:stop])
        start = stop
    return pieces
