"""Reports of a run: a JSON log for programs, lines on stderr for people, TensorBoard if enabled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from sbert_search.base import files
from sbert_search.base.device import matmul_rate, memory_bytes
from sbert_search.base.progress import duration, progress, tell_progress, warn
from sbert_search.errors import ConfigError, install
from sbert_search.train.loop.failure_checks import (
    ConstantLossDetector,
    EqualScoresDetector,
    short_run_note,
)
from sbert_search.train.loop.gradients import StepContext, StepMetrics
from sbert_search.train.loop.log import LOG, LineKind, Log, draw_curves, read_log
from sbert_search.train.loop.objective import EQUAL_SCORES
from sbert_search.train.loop.schedule import RunState, Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportConfig:
    """What is written and shown; no setting here affects the weights."""

    every_s: float = 10.0  # time between two progress lines
    unit: str = "tokens"  # unit of the speed: "tokens", or a name for rows such as "pairs"
    tensorboard: bool = False  # whether to write event files for TensorBoard


class Report:
    """Writes the log and progress lines of a run; only on the first rank."""

    def __init__(
        self,
        config: ReportConfig,
        out: Path,
        model: nn.Module,
        state: RunState,
        context: StepContext,
        schedule: Schedule,
    ) -> None:
        self.config, self.context, self.schedule = config, context, schedule
        self._picture = out / "curves.svg"
        first = context.ranks.first  # the other ranks report nothing
        self._flops_per_token = 6 * matrix_parameters(model)
        self._dev: Mapping[str, float] = {}
        self._losses: list[float] = []
        self._last = replace(state)
        self._micro_size = state.micro_size
        self._constant_loss = ConstantLossDetector()
        self._equal_scores = EqualScoresDetector()
        steps = schedule.total if schedule.in_steps else None
        training = progress(
            "Training",
            None if steps is None else int(steps) - state.step,
            "steps",
            hidden=not first,
            own_lines=True,
        )
        self._log: Log | None = None
        self._board: Any = None  # TensorBoard's SummaryWriter, which torch does not annotate
        with ExitStack() as opened:  # closes the log if TensorBoard cannot be opened
            if first:
                self._log = opened.enter_context(closing(Log(out / LOG, state.step)))
            if first and config.tensorboard:
                self._board = opened.enter_context(closing(_open_board(out, state.step)))
            self._advance = opened.enter_context(training)
            self._opened = opened.pop_all()

    def step(self, state: RunState, metrics: StepMetrics, lr: float) -> None:
        """Log a step; show a progress line every `ReportConfig.every_s` seconds of training."""
        if state.micro_size != self._micro_size:
            self._micro_size = state.micro_size
            self.event(
                state.step,
                f"Step {state.step} did not fit in memory. From now on the micro-batch size is "
                f"{state.micro_size}, and gradients accumulate.",
            )
        if warning := self._constant_loss.see(metrics.loss):
            self.event(state.step, warning)
        equal, done = metrics.metrics.get(EQUAL_SCORES), self._done(state)
        if equal is not None and (warning := self._equal_scores.see(metrics.loss, equal, done)):
            self.event(state.step, warning)
        if self.context.ranks.first:  # other ranks show no mean of these losses
            self._losses.append(metrics.loss)
        self._advance(1)
        scalars = {"loss": metrics.loss, "lr": lr, "gradient_norm": metrics.gradient_norm}
        position = {"epoch": state.epoch, "tokens": state.tokens}
        named = {"losses": metrics.losses, "figures": metrics.metrics}
        self._write("step", state.step, {**position, **scalars, **named})
        if state.seconds - self._last.seconds >= self.config.every_s:
            self.show_progress(state)

    def dev(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of an evaluation."""
        self._dev = metrics
        self._write("dev", step, {"figures": metrics})

    def event(self, step: int, message: str) -> None:
        """Log a message and show it."""
        if self._log is not None:
            self._log.write("event", step, message=message)
            warn(message)

    def note_short_run(self, steps: int) -> None:
        """Tell the user if so many steps may be too few to train a model."""
        if self._log is not None and (message := short_run_note(steps)):
            warn(message)

    def show_progress(self, state: RunState) -> None:
        """Show the progress, and the mean loss and speed since the previous line; log the speed."""
        if not self._losses:
            return
        seconds = max(state.seconds - self._last.seconds, 1e-9)
        tokens_per_s = (state.tokens - self._last.tokens) / seconds
        rows_per_s = (state.rows - self._last.rows) / seconds
        device, dtype, ranks = self.context.device, self.context.dtype, self.context.ranks
        # The peak rate of the device is not known, so a matrix product is measured instead.
        gemm = matmul_rate(device, dtype).flops * ranks.world
        share = tokens_per_s * self._flops_per_token / gemm
        memory = memory_bytes(device)
        speed = {
            "tokens_per_s": tokens_per_s,
            "rows_per_s": rows_per_s,
            "gemm_share": share,
            "memory_bytes": memory,
            "seconds": state.seconds,
        }
        self._write("speed", state.step, speed)
        in_tokens = self.config.unit == "tokens"
        parts = [
            f"step {state.step:,}",
            f"{self._done(state):.0%}",
            f"loss {sum(self._losses) / len(self._losses):.4f}",
            *(f"{name} {value:.4f}" for name, value in self._dev.items()),
            f"{tokens_per_s if in_tokens else rows_per_s:,.0f} {self.config.unit}/s",
            f"{memory / 2**30:.1f} GiB",
            f"{self._time_left(state)} left",
        ]
        tell_progress("  ".join(parts))
        self._losses, self._last = [], replace(state)

    def draw_curves(self) -> None:
        """Draw the curves of the log; if a file cannot be read or written, only print a warning."""
        if self._log is None:
            return
        try:
            files.replace_file(self._picture, draw_curves(read_log(self._log.path)).encode())
        except OSError as error:
            warn(f"The curves of {self._log.path} cannot be drawn to {self._picture}: {error}.")

    def sync(self) -> None:
        """Make the log durable."""
        if self._log is not None:
            self._log.sync()

    def close(self) -> None:
        """Close the progress display, the event files and the log."""
        self._opened.close()

    def _done(self, state: RunState) -> float:
        return min(1.0, self.schedule.done(state) / self.schedule.total)

    def _time_left(self, state: RunState) -> str:
        """Estimate the time left, without evaluations, from the average speed so far."""
        done = self._done(state)
        return duration(state.seconds * (1 - done) / done) if done else "?"

    def _write(self, kind: LineKind, step: int, values: Mapping[str, object]) -> None:
        if self._log is not None:
            self._log.write(kind, step, **values)
        if self._board is not None:
            for name, value in _flat(values, kind):
                self._board.add_scalar(name, value, step)


def matrix_parameters(model: nn.Module) -> int:
    """Count the trained parameters of matrix products: all matrices except embedding tables.

    A step costs about 6 FLOPs per such parameter and token (Chowdhery et al. 2022, PaLM,
    arXiv:2204.02311, appendix B, without the attention term). A matrix that several layers share
    (ALBERT) counts once, an output layer that shares the table of embeddings not at all.
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    trained = (p for p in model.parameters() if p.requires_grad and p.ndim >= 2)
    return sum(p.numel() for p in trained if id(p) not in tables)


def _flat(values: Mapping[str, object], path: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}/{name}")
        elif isinstance(value, (int, float)):
            yield f"{path}/{name}", value


def _open_board(out: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "report.tensorboard is on, but TensorBoard is not installed. Turn it off, or run: "
            f"{install('train')}."
        ) from error
    return SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)
