"""Detect values that are not finite, a loss that does not fall, lack of memory, and Ctrl-C."""

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
from sbert_search.train.loop.gradients import StepMetrics

FEW_STEPS = 50  # fewer may be too few to train a model
STUCK_STEPS = 50  # after so many equal losses, training counts as stuck
_SPREAD = 1e-5  # losses are equal if they differ by at most this, times the loss if it is above 1
_QUIET_SHARE = 0.5  # share of a run after which a ranking loss should have fallen
_JUDGED_STEPS = 20  # number of newest steps whose mean loss is judged
_NEAR_EQUAL = 0.98  # a loss is near the loss of equal scores if it is at least this share of it
_SHOWN_ROWS = 16  # largest number of rows in a message
_ALLOCATION_FAILED = ("can't allocate memory", "not enough memory")  # torch's CPU allocator


def not_finite(metrics: StepMetrics) -> str:
    """Describe the values of a step that are not finite; "" if all are finite."""
    wrong = [f"loss {name} is {x}" for name, x in metrics.losses.items() if not math.isfinite(x)]
    if not wrong and not math.isfinite(metrics.gradient_norm):
        wrong = [f"the gradient's norm is {metrics.gradient_norm}"]
    return " and ".join(wrong)


def non_finite_error(wrong: str, step: int, lr: float, rows: NDArray[np.int64]) -> TrainingError:
    """Make the error of a step (from 1) with the values of `not_finite`; a row may be the cause."""
    shown = ", ".join(map(str, rows[:_SHOWN_ROWS].tolist()))
    rest = f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else ""
    # In the first step, no update of this run can be the cause.
    cause = "the model that the run starts from" if step == 1 else "a too high optim.lr"
    return TrainingError(
        f"Step {step} (learning rate {lr:.3g}): {wrong}. The weights were not changed. The cause "
        f"may be {cause}, or one of the training rows {shown}{rest} (counted from 0)."
    )


def diverged_error(step: int) -> TrainingError:
    """Make the error of a run whose dev loss is not finite any more."""
    return TrainingError(
        f"After step {step}, the dev loss is not finite: the model has diverged. No model is "
        "written. Start again with a lower optim.lr, or a longer schedule.warmup; earlier "
        "checkpoints stay."
    )


def no_gradient_error(steps: int, *, trainable: bool, fitted: bool = False) -> TrainingError:
    """Make the error of a run whose gradient was 0 in every step; ``fitted``: by `ConvexFit`."""
    if not trainable:
        cause = "No parameter of the model is trained"
    elif fitted:
        cause = (
            "The rows had nothing to learn from: for example texts that the model reads as the "
            "same tokens, each with several labels. Use other data"
        )
    else:
        cause = (
            "The batches had nothing to learn from: for example one row, one class, rows without a "
            "negative, or triplets whose loss is 0 because the negative is farther by loss.margin. "
            "Use other data, a larger batching.size or another loss"
        )
    return TrainingError(
        f"The gradient was 0 in all {steps:,} steps, so the model has learned nothing. {cause}. No "
        "model is written; the checkpoints stay."
    )


def short_run_note(steps: int) -> str:
    """Return a note about a run of few steps; "" if there are enough."""
    if steps >= FEW_STEPS:
        return ""
    return (
        f"{steps} optimizer step{'s' if steps > 1 else ''} may be too few to train a model. More "
        "epochs (budget.epochs), a smaller batching.size or more data give more steps."
    )


class ConstantLossDetector:
    """Detects a loss that no longer depends on the data."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=STUCK_STEPS)

    def see(self, loss: float) -> str | None:
        """Take the loss of one step; return a warning after `STUCK_STEPS` equal ones."""
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
            f"The loss has been {high:.6g} for {STUCK_STEPS} steps, for every batch: the model "
            "no longer tells its inputs apart, or none of its parameters is trained. Lower "
            "optim.lr, lengthen schedule.warmup, or look at the labels."
        )


class EqualScoresDetector:
    """Detects a ranking loss that stays near its value for equal scores of all candidates."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_JUDGED_STEPS)
        self._warned = False

    def see(self, loss: float, of_equal_scores: float, done: float) -> str | None:
        """Take losses and the done share of the run; return a warning once, in its second half."""
        self._recent.append((loss, of_equal_scores))
        if self._warned or done < _QUIET_SHARE or len(self._recent) < _JUDGED_STEPS:
            return None
        mean, equal = (
            sum(values) / len(self._recent) for values in zip(*self._recent, strict=True)
        )
        if mean < _NEAR_EQUAL * equal:
            return None
        self._warned = True
        return (
            f"The loss of the last {len(self._recent)} steps is {mean:.4f}; it is {equal:.4f} if "
            "all candidates of a query get the same score. The model hardly tells relevant texts "
            "from others. Train longer, raise optim.lr, start from a larger model, or look at the "
            "labels."
        )


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device or the host has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(s in str(error) for s in _ALLOCATION_FAILED)


@dataclass(slots=True)
class Interrupt:
    """Whether the user or the system asked this run to stop."""

    requested: bool = False


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to stop; the second one acts as usual."""
    interrupt = Interrupt()
    # Python allows signal handlers only in the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    handled = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in handled}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def request_stop(number: int, frame: FrameType | None) -> None:
        interrupt.requested = True
        restore()  # the second signal ends the process

    for number in handled:
        signal.signal(number, request_stop)
    try:
        yield interrupt
    finally:
        restore()
