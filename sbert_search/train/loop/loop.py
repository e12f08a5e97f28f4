"""The training loop: step, evaluate, save. Resuming a run does not change its final weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, NoReturn, TypeVar

import torch
from torch import nn

from sbert_search.base.device import DTYPES, Precision, resolve_device, resolve_precision
from sbert_search.base.distributed import Ranks, join_ranks
from sbert_search.base.progress import detail
from sbert_search.base.threads import prefetch
from sbert_search.base.verdicts import Verdict
from sbert_search.config import MAX_SEED, to_mapping, to_toml
from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.precision import training_precision
from sbert_search.train.loop.checkpoint import (
    Checkpoint,
    CheckpointConfig,
    checkpoint_path,
    newest_checkpoint,
    remove_old_checkpoints,
    save_checkpoint,
)
from sbert_search.train.loop.failure_checks import diverged_error, interrupts, no_gradient_error
from sbert_search.train.loop.gradients import StepContext
from sbert_search.train.loop.objective import Batches, BatchingConfig, InBatchObjective, Objective
from sbert_search.train.loop.optim import OptimConfig, optimizer_tensors
from sbert_search.train.loop.report import Report, ReportConfig
from sbert_search.train.loop.resume import (
    model_tensors,
    refuse_restart,
    require_agreement,
    restore,
    run_fingerprint,
)
from sbert_search.train.loop.schedule import (
    FEWEST_ROWS,
    BudgetConfig,
    DevMetrics,
    EvaluationConfig,
    RunState,
    Schedule,
    ScheduleConfig,
    has_diverged,
    require_direction,
    require_metric,
    update_best,
)
from sbert_search.train.loop.step import ConvexFit, Penalties, Stepper


def choose_precision(
    precision: Precision,
    device: torch.device,
    model: nn.Module,
    batches: Batches,
    ranks: Ranks,
    resumed: Checkpoint | None,
) -> tuple[torch.dtype, Verdict | None]:
    """Choose the dtype of matrix products; on a CPU, "auto" is the faster of fp32 and bf16.

    The first rank measures for all; a resumed run keeps the precision of its checkpoint, so that it
    ends with the weights of an uninterrupted run. Else the setting and the device decide, and
    `resume.restore` refuses a checkpoint of another precision. The verdict is None if this process
    measured nothing.
    """
    dtype = resolve_precision(precision, device)
    if precision != "auto" or device.type != "cpu":
        return dtype, None
    if resumed is not None:
        return _of_checkpoint(resumed) or dtype, None
    verdict = _measure(model, batches, ranks) if ranks.first else None
    if verdict is not None:
        detail(f"Precision {verdict}.")
        dtype = DTYPES[verdict.choice]
    (chosen,) = ranks.from_first([float(dtype == torch.bfloat16)])
    return torch.bfloat16 if chosen else torch.float32, verdict


def _of_checkpoint(checkpoint: Checkpoint) -> torch.dtype | None:
    circumstances = checkpoint.state.get("circumstances")
    saved = circumstances.get("precision") if isinstance(circumstances, dict) else None
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(str(saved))


def _measure(model: nn.Module, batches: Batches, ranks: Ranks) -> Verdict | None:
    """Measure a training step of one block of the largest encoder, in fp32 and bf16.

    It has about as many tokens as a micro-batch of one rank, or fewer if these take too long, in
    texts of about the mean length of a row. None: there is no encoder, or its blocks are so small
    that the precision does not matter.
    """
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    if not encoders:
        return None
    config, length = batches.config, float(batches.lengths.mean())
    tokens = (config.micro_size or config.size) * (length if config.unit == "rows" else 1.0)
    if config.micro_size is None:
        tokens /= ranks.world
    largest = max(encoders, key=lambda encoder: sum(p.numel() for p in encoder.parameters()))
    return training_precision(largest, tokens=round(tokens), length=round(length))


Stopped = Literal["budget", "patience"]
C = TypeVar("C", bound="TrainConfig")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Settings of every training run; `train/recipes` holds TOML examples."""

    budget: BudgetConfig
    # Decides random weights, data order, dropout and random draws, such as masks.
    seed: Annotated[int, Bounds(0, MAX_SEED)] = 0
    device: str = "auto"  # auto, cpu, cuda, cuda:N or mps
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # of matrix products; auto: the faster
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    state: RunState
    stopped: Stopped
    last: Path  # checkpoint of the last step
    # Checkpoint with the best dev metric, on rank 0; None: no metric that can choose was computed.
    best: Path | None


def train(
    objective: Objective | InBatchObjective,
    batches: Batches,
    config: TrainConfig,
    *,
    model: nn.Module,
    out: Path,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
    save_model: Callable[[Path], object] | None = None,
    penalties: Penalties | None = None,
    recipe: Mapping[str, object] | None = None,
    resume: bool = False,
    allow_inexact: bool = False,
) -> Result:
    """Train a model, in place.

    Under torchrun every rank makes this call, and each step is divided among the ranks. The rows
    and random draws of a step depend only on the settings, the data, the number of ranks and the
    number of the step.

    Args:
        objective: The loss. An in-batch loss uses GradCache when a step has several micro-batches.
        batches: The data.
        config: The settings of the loop.
        model: The model. Every parameter with ``requires_grad`` is trained.
        out: Folder of the run: checkpoints, log, curves.
        evaluate: Returns dev metrics by name; called on the first rank, in eval mode. If they are
            `DevMetrics` of too few rows to choose by, they are only reported.
        save_model: Writes the model into a new folder that other libraries load; called at each
            checkpoint.
        penalties: L2 penalties of a model whose loss is one sum that is convex in the trained
            weights: it is fitted to convergence in one step, and the settings of budget, batching,
            optimizer, schedule and precision have no effect.
        recipe: The whole resolved recipe; None: ``config`` is all of it.
        resume: Resume from the newest checkpoint in ``out``.
        allow_inexact: Resume although data, recipe, threads, ranks, device, precision or versions
            differ from those of the checkpoint. Also train although threads, device, precision or
            versions differ between the ranks.

    Raises:
        TrainingError: A loss, a gradient or the dev loss that selects the model is not finite; the
            gradient was 0 in all steps; a row does not fit in memory; the ranks differ; another
            rank ended; or the log cannot be written.
        CheckpointError: There is no usable checkpoint to resume from, or it has another
            fingerprint; without ``resume``, ``out`` holds checkpoints; or a write failed.
        ConfigError: Settings contradict each other or do not fit the dev metrics, the device does
            not exist, or the run would overwrite a file or folder that its recipe names.
        KeyboardInterrupt: After Ctrl-C or SIGTERM, once a checkpoint is saved.
    """
    recipe = to_mapping(config) if recipe is None else recipe
    if penalties is not None:
        config = _of_one_step(config)
    with join_ranks() as ranks:
        saved = newest_checkpoint(out) if resume else None
        run = _Run(
            objective,
            batches,
            config,
            model,
            out,
            evaluate,
            save_model,
            penalties,
            recipe,
            ranks,
            saved,
        )
        run.require_agreement(allow_inexact=allow_inexact)
        if saved is not None:
            run.resume(saved, allow_inexact=allow_inexact)
        else:
            run.start()
        return run.run()


def _of_one_step(config: C) -> C:
    """Return the settings of a run that is one fit: L-BFGS in fp32, with full steps."""
    return replace(
        config,
        budget=BudgetConfig(steps=1),
        optim=OptimConfig(lr=1.0),
        schedule=ScheduleConfig(kind="constant", warmup=0.0),
        precision="fp32",
    )


@dataclass
class _Run:
    """One rank's part of a run."""

    objective: Objective | InBatchObjective
    batches: Batches
    config: TrainConfig
    model: nn.Module
    out: Path
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None
    save_model: Callable[[Path], object] | None
    penalties: Penalties | None
    recipe: Mapping[str, object]
    ranks: Ranks
    resumed: Checkpoint | None

    def __post_init__(self) -> None:
        config = self.config
        if isinstance(self.evaluate, DevMetrics):
            require_metric(config.evaluation, self.evaluate.names)
            require_direction(config.evaluation, self.evaluate.names, self.evaluate.losses)
        self.few_rows = None  # number of dev rows if they are too few to choose by
        if isinstance(self.evaluate, DevMetrics) and not self.evaluate.can_choose:
            self.few_rows = self.evaluate.rows
        if config.evaluation.patience is not None and (
            self.evaluate is None or self.few_rows is not None
        ):
            few = f"only {self.few_rows} dev rows, fewer than {FEWEST_ROWS}"
            raise ConfigError(
                f"evaluation.patience is {config.evaluation.patience}, but there are "
                f"{'no dev data' if self.evaluate is None else few}, whose metrics would end the "
                f"run; set data.dev to {FEWEST_ROWS} rows or more, or remove evaluation.patience."
            )
        device = resolve_device(config.device)
        if device.type == "cuda" and self.ranks.world > 1:
            device = torch.device("cuda", self.ranks.local_rank)
        self.model.to(device)
        dtype, self.verdict = choose_precision(
            config.precision, device, self.model, self.batches, self.ranks, self.resumed
        )
        self.context = StepContext(device, dtype, self.ranks, config.seed)
        self.stepper = self._stepper()
        self.schedule = Schedule(config.schedule, config.budget, self.batches)
        dev = self.evaluate.fingerprint if isinstance(self.evaluate, DevMetrics) else ""
        data = self.batches.fingerprint + (", fitted to convergence" if self.penalties else "")
        self.fingerprint = run_fingerprint(self.recipe, data, self.context, dev)
        self.state = RunState()

    def _stepper(self) -> Stepper:
        objective, optim = self.objective, self.config.optim
        if self.penalties is None:
            return Stepper(objective, self.batches, self.model, optim, self.context)
        assert not isinstance(objective, InBatchObjective)
        return ConvexFit(objective, self.batches, self.model, optim, self.context, self.penalties)

    def require_agreement(self, *, allow_inexact: bool) -> None:
        """Refuse ranks of other checkpoints or fingerprints (``allow_inexact``: recipes, data)."""
        names = {"recipe", "data"} if allow_inexact else {*self.fingerprint}
        settings = {name: value for name, value in self.fingerprint.items() if name in names}
        checkpoint = None if self.resumed is None else self.resumed.path.name
        require_agreement(self.ranks, {**settings, "checkpoint": checkpoint})

    def start(self) -> None:
        """Begin at step 0; every rank takes the weights of the first rank."""
        refuse_restart(self.out, self.recipe)
        self.out.mkdir(parents=True, exist_ok=True)
        self.ranks.start_equal(self.model)

    def resume(self, checkpoint: Checkpoint, *, allow_inexact: bool) -> None:
        self.state = restore(
            checkpoint,
            self.model,
            self.stepper.optimizer,
            self.fingerprint,
            allow_inexact=allow_inexact,
        )

    def run(self) -> Result:
        """Take steps until the budget is used, patience runs out, or a signal arrives."""
        config, state, ranks = self.config, self.state, self.ranks
        report = Report(config.report, self.out, self.model, state, self.context, self.schedule)
        plan = self.stepper.plan(state.epoch, state.index, state.micro_size)
        self.model.train()
        with interrupts() as interrupt, closing(report), closing(prefetch(plan)) as planned_steps:
            fitted = self.penalties is not None  # its one step goes on to convergence
            if self.schedule.in_steps and not fitted:
                report.note_short_run(int(self.schedule.total))
            self._evaluate_start(report)
            while not (stopped := self._stopped()):
                started, used = time.perf_counter(), time.process_time()
                planned = next(planned_steps)
                lr = config.optim.lr * self.schedule.factor(state)
                metrics = self.stepper.take(planned, state, lr)
                state.idle_steps += not metrics.gradient_norm
                elapsed = state.seconds + time.perf_counter() - started
                state.processor_seconds += time.process_time() - used
                # All ranks take the time of the first one, and stop if any of them is asked to.
                first_s = elapsed if ranks.first else 0.0
                state.seconds, interrupted = ranks.sum([first_s, interrupt.requested])
                report.step(state, metrics, lr)

                ends = planned.ends_epoch
                improved = self._is_time(config.evaluation.every, ends) and self._evaluate(report)
                if improved or interrupted or self._is_time(config.checkpoint.every, ends):
                    self._save(report)
                if interrupted and not self._stopped():
                    self._interrupt(report)
            report.show_progress(state)
            report.draw_curves()
            if not (self.schedule.in_steps or fitted):
                report.note_short_run(state.step)
        if state.idle_steps == state.step:
            trainable = any(p.requires_grad for p in self.model.parameters())
            raise no_gradient_error(state.step, trainable=trainable, fitted=fitted)
        return self._result(stopped)

    def _stopped(self) -> Stopped | None:
        patience = self.config.evaluation.patience
        if patience is not None and self.state.stale >= patience:
            return "patience"
        return "budget" if self.schedule.over(self.state) else None

    def _is_time(self, every: int | None, ends_epoch: bool) -> bool:
        regular = ends_epoch if every is None else self.state.step % every == 0
        return regular or self._stopped() is not None

    def _evaluate_start(self, report: Report) -> None:
        """Report the dev metrics before the first step, which never count as the best."""
        if self.evaluate is not None and self.ranks.first and self.state.step == 0:
            report.dev(0, self._dev_metrics(self.evaluate))
        if self.few_rows is not None:
            report.event(
                self.state.step,
                f"The dev data have {self.few_rows} rows, and fewer than {FEWEST_ROWS} cannot show "
                "which checkpoint is best: their metrics are only reported, and the model of the "
                "last step is the result.",
            )

    def _dev_metrics(
        self, evaluate: Callable[[nn.Module], Mapping[str, float]]
    ) -> Mapping[str, float]:
        self.model.eval()
        with torch.no_grad():
            metrics = evaluate(self.model)
        self.model.train()
        return metrics

    def _evaluate(self, report: Report) -> bool:
        """Compute the dev metrics on the first rank; return whether they are the best so far."""
        improved, diverged = False, False
        if self.evaluate is not None and self.ranks.first:
            metrics = self._dev_metrics(self.evaluate)
            if self.few_rows is None:
                improved = update_best(self.config.evaluation, self.state, metrics)
            diverged = has_diverged(self.config.evaluation, metrics)
            report.dev(self.state.step, metrics)
        best, stale, of_first = self.ranks.from_first([improved, self.state.stale, diverged])
        self.state.stale = int(stale)
        if of_first:
            raise diverged_error(self.state.step)
        return bool(best)

    def _save(self, report: Report) -> None:
        if not self.ranks.first:
            return
        report.sync()
        moments = optimizer_tensors(self.stepper.optimizer, self.model)
        save_checkpoint(
            self.out,
            self.state.step,
            {f"model/{name}": tensor for name, tensor in model_tensors(self.model).items()}
            | {f"optim/{name}": tensor for name, tensor in moments.items()},
            {
                "run": asdict(self.state),
                "circumstances": self.fingerprint,
                "verdict": self._stored_verdict(),
            },
            to_toml(self.recipe),
            self.save_model,
        )
        remove_old_checkpoints(
            self.out, self.config.checkpoint.keep, self.state.step, self.state.best_step
        )

    def _stored_verdict(self) -> object:
        """Return the measurement that chose the precision, in this process or before a resume."""
        if self.verdict is not None:
            return to_mapping(self.verdict)
        return None if self.resumed is None else self.resumed.state.get("verdict")

    def _interrupt(self, report: Report) -> NoReturn:
        report.event(
            self.state.step,
            f"Stopped at step {self.state.step}, which is saved. Resume with --resume {self.out} "
            "(resume=True).",
        )
        raise KeyboardInterrupt

    def _result(self, stopped: Stopped) -> Result:
        best = self.state.best_step
        return Result(
            self.state,
            stopped,
            checkpoint_path(self.out, self.state.step),
            None if best is None else checkpoint_path(self.out, best),
        )
