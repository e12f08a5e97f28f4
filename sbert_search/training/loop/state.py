"""The position of a run: everything needed to resume that is not a tensor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class RunState:
    """The position of a run, and the best dev metric so far."""

    step: int = 0  # optimizer steps done
    epoch: int = 0
    index: int = 0  # steps done in this epoch
    tokens: int = 0  # without padding, over all ranks
    rows: int = 0
    seconds: float = 0.0  # of training, summed over interrupted and resumed processes
    micro_size: int | None = None  # None: as configured; smaller after running out of memory
    best: float | None = None  # value of the selecting dev metric
    best_step: int | None = None
    stale: int = 0  # evaluations since the best value

    def advance(self, rows: int, tokens: int, *, ends_epoch: bool) -> None:
        """Move on by one step."""
        self.step, self.rows, self.tokens = self.step + 1, self.rows + rows, self.tokens + tokens
        self.epoch, self.index = (self.epoch + 1, 0) if ends_epoch else (self.epoch, self.index + 1)
