"""Where a run is: all that is not a tensor and that going on needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class RunState:
    """The position of a run and what it has seen of its dev figure."""

    step: int = 0  # optimizer steps done
    epoch: int = 0
    index: int = 0  # steps done of this epoch
    tokens: int = 0  # through the encoder, over all ranks
    rows: int = 0
    seconds: float = 0.0  # of training, over all the processes that carried it
    micro_size: int | None = None  # None: the recipe's; smaller once memory did not do
    best: float | None = None  # dev figure
    best_step: int | None = None
    stale: int = 0  # evaluations since the best one

    def advance(self, rows: int, tokens: int, *, ends_epoch: bool) -> None:
        """Move on by one step."""
        self.step, self.rows, self.tokens = self.step + 1, self.rows + rows, self.tokens + tokens
        self.epoch, self.index = (self.epoch + 1, 0) if ends_epoch else (self.epoch, self.index + 1)
