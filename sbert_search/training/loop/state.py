"""Progress of a run: everything except tensors that is needed to resume it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class RunState:
    """Progress of a run, and its best dev metric so far."""

    step: int = 0  # optimizer steps done
    epoch: int = 0  # epochs done
    index: int = 0  # steps done in this epoch
    tokens: int = 0  # trained on, without padding, over all ranks
    rows: int = 0  # trained on, over all ranks
    seconds: float = 0.0  # of all steps, without evaluations, also before a resume
    processor_seconds: float = 0.0  # CPU time of all threads of the first rank in these steps
    idle_steps: int = 0  # steps whose gradient was 0
    micro_size: int | None = None  # None: as configured; reduced when memory ran out
    best: float | None = None  # best finite value of the dev metric that selects the model
    best_step: int | None = None  # last step with that value; None: there was no finite value
    stale: int = 0  # evaluations since the best value was first reached

    def advance(self, rows: int, tokens: int, *, ends_epoch: bool) -> None:
        """Count one more step."""
        self.step, self.rows, self.tokens = self.step + 1, self.rows + rows, self.tokens + tokens
        self.epoch, self.index = (self.epoch + 1, 0) if ends_epoch else (self.epoch, self.index + 1)
