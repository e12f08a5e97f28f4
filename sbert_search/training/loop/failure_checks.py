"""What stops a run, or is said of it, when its numbers go wrong."""

from __future__ import annotations

import math
import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import numpy as np
import torch
from numpy.typing import NDArray

from sbert_search.errors import TrainingError
from sbert_search.training.loop.gradients import StepMetrics

STUCK_STEPS = 50  # this many losses in a row that are all the same are no accident
_SPREAD = 1e-5  # relative; "the same" allows for rounding
_SHOWN_ROWS = 16
_ALLOCATION_FAILED = ("can't allocate memory", "not enough memory")  # as torch says it of the CPU


def not_finite(metrics: StepMetrics) -> str:
    """Say which numbers of a step are not finite, or ""."""
    wrong = [f"loss {name} is {x}" for name, x in metrics.losses.items() if not math.isfinite(x)]
    if not wrong and not math.isfinite(metrics.gradient_norm):
        wrong = [f"the gradient's norm is {metrics.gradient_norm}"]
    return " and ".join(wrong)


def non_finite_error(wrong: str, step: int, lr: float, rows: NDArray[np.int64]) -> TrainingError:
    """Make the error of a step whose numbers are not finite.

    Args:
        wrong: Which numbers, from `not_finite`.
        step: Number of the step, from 1.
        lr: Its learning rate.
        rows: Rows of the data that may be to blame.
    """
    shown = ", ".join(map(str, rows[:_SHOWN_ROWS].tolist()))
    rest = f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else ""
    return TrainingError(
        f"Step {step} (learning rate {lr:.3g}): {wrong}. Rows {shown}{rest}. "
        "The weights were not changed; look at these rows, or lower optim.lr."
    )


class ConstantLossDetector:
    """Notices a loss that has stopped depending on the data."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=STUCK_STEPS)

    def see(self, loss: float) -> str | None:
        """Take the loss of one step; return what to tell once it is stuck, and then start over."""
        self._recent.append(loss)
        low, high = min(self._recent), max(self._recent)
        if len(self._recent) < STUCK_STEPS or high - low > _SPREAD * max(abs(high), 1.0):
            return None
        self._recent.clear()
        if abs(high) <= _SPREAD:
            return (
                f"The loss has been 0 for {STUCK_STEPS} steps: these batches teach nothing more. "
                "Use harder examples or a larger margin, or stop."
            )
        return (
            f"The loss has been {high:.6g} for {STUCK_STEPS} steps, whatever the batch: the model "
            "no longer tells its inputs apart, or nothing of it is trained. Lower optim.lr, "
            "lengthen schedule.warmup, or look at the labels."
        )


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device, or the host, has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(s in str(error) for s in _ALLOCATION_FAILED)


@dataclass(slots=True)
class Interrupt:
    """Whether somebody asked this run to stop."""

    requested: bool = False


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """Turn the first Ctrl-C (or SIGTERM) into a request; the second one acts as it always does.

    Outside the main thread no signal can be caught, and none is.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.getsignal(kind) or signal.SIG_DFL for kind in kinds}

    def ask(kind: int, frame: FrameType | None) -> None:
        interrupt.requested = True
        for each in kinds:
            signal.signal(each, before[each])

    for kind in kinds:
        signal.signal(kind, ask)
    try:
        yield interrupt
    finally:
        for kind in kinds:
            signal.signal(kind, before[kind])
