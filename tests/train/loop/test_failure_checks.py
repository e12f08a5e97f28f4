import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sbert_search.base.out_of_memory import ran_out_of_memory
from sbert_search.errors import TrainingError
from sbert_search.train.loop.checkpoint import newest_checkpoint
from sbert_search.train.loop.failure_checks import (
    STUCK_STEPS,
    ConstantLossDetector,
    EqualScoresDetector,
    interrupts,
    no_gradient_error,
    out_of_memory,
)
from sbert_search.train.loop.log import read_log
from sbert_search.train.loop.loop import train
from sbert_search.train.loop.objective import Batch, InBatchObjective, Losses, Objective
from tests.train.small import (
    TASKS,
    PairObjective,
    TokenModel,
    settings,
    step_losses,
    token_batches,
    token_objective,
)


def run(objective: Objective | InBatchObjective, out: Path, *overrides: str) -> TokenModel:
    config, model = settings("checkpoint.every=3", *overrides), TokenModel(0.0)
    kind = "pair" if isinstance(objective, InBatchObjective) else "token"
    batches = TASKS[kind][1](config)
    train(objective, batches, config, model=model, out=out)
    return model


class Spoiled:
    """Spoils the loss, or only its gradient, in the micro-batch that holds a row."""

    def __init__(self, row: int, *, gradient_only: bool = False) -> None:
        self.row, self.gradient_only = row, gradient_only
        self.weights: dict[str, Tensor] = {}

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        losses = token_objective(model, batch)
        if self.row not in batch.rows:
            return losses
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        total, count = losses.sums["tokens"]
        total = total + (total * 0).sqrt() if self.gradient_only else total * float("nan")
        return Losses({**losses.sums, "tokens": (total, count)})


def test_a_loss_that_is_not_finite_stops_with_step_rate_and_rows(tmp_path: Path) -> None:
    config = settings()
    batches = token_batches(config)
    rows = batches.rows(0, 4)  # the fifth step
    objective = Spoiled(int(rows[9]))
    part = ", ".join(map(str, rows[8:16].tolist()))
    with pytest.raises(TrainingError) as caught:
        run(objective, tmp_path, "batching.micro_size=8", "schedule.warmup=0")
    message = str(caught.value)
    assert message.startswith("Step 5 (learning rate 0.00667): loss tokens is nan. The weights ")
    assert message.endswith(
        f"a too high optim.lr, or one of the training rows {part} (counted from 0)."
    )
    assert [path.name for path in tmp_path.glob("ckpt-*")] == ["ckpt-00000003"]
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")][-1] == 4


def test_a_gradient_that_is_not_finite_changes_no_weight(tmp_path: Path) -> None:
    objective = Spoiled(int(token_batches(settings()).rows(0, 1)[0]), gradient_only=True)
    config, model = settings(), TokenModel(0.0)
    with pytest.raises(TrainingError, match=r"Step 2 .*gradient's norm is nan.* and 16 more"):
        train(objective, token_batches(config), config, model=model, out=tmp_path)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, objective.weights[name])


def test_a_model_that_has_diverged_before_the_run_is_named(tmp_path: Path) -> None:
    objective = Spoiled(int(token_batches(settings()).rows(0, 0)[0]))
    with pytest.raises(
        TrainingError, match=r"^Step 1 .* may be the model that the run starts from"
    ):
        run(objective, tmp_path)


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_a_dev_loss_that_is_not_finite_ends_the_run(tmp_path: Path, higher_is_better: bool) -> None:
    config = settings(
        "evaluation.every=2", f"evaluation.higher_is_better={str(higher_is_better).lower()}"
    )
    seen = iter([1.0, 0.5, math.nan, 0.4, 0.3, 0.2, 0.1] + [0.05] * 90)
    batches, model = token_batches(config), TokenModel(0.0)

    def start() -> None:
        train(
            token_objective, batches, config, model=model, out=tmp_path,
            evaluate=lambda model: {"metric": next(seen)},
        )  # fmt: skip

    if higher_is_better:  # such as a correlation, which may be undefined for a sound model
        start()
        return
    with pytest.raises(TrainingError, match=r"^After step 4, the dev loss is not finite"):
        start()
    dev = [line for line in read_log(tmp_path / "log.jsonl") if line["kind"] == "dev"]
    assert [line["step"] for line in dev] == [0, 2, 4]


def test_a_loss_at_its_floor_is_reported() -> None:
    watch = ConstantLossDetector()
    said = [watch.see(0.0) for _ in range(2 * STUCK_STEPS)]
    assert [i for i, text in enumerate(said) if text] == [STUCK_STEPS - 1, 2 * STUCK_STEPS - 1]
    assert "teach nothing more" in (said[STUCK_STEPS - 1] or "")
    said = [watch.see(3.465736 + 1e-6 * (i % 3)) for i in range(STUCK_STEPS)]
    assert "no longer tells its inputs apart" in (said[-1] or "")
    assert not any(watch.see(3.0 + 1e-3 * (i % 7)) for i in range(3 * STUCK_STEPS))


def test_a_run_tells_of_its_floor(tmp_path: Path) -> None:
    class Flat(PairObjective):
        def loss(self, embeddings: Tensor, targets: Tensor | None) -> Losses:
            return Losses({"flat": ((embeddings * 0).sum(), 1)})

    with pytest.raises(TrainingError, match="The gradient was 0 in all 50 steps"):
        run(Flat(), tmp_path, f"budget.steps={STUCK_STEPS}")
    events = [line for line in read_log(tmp_path / "log.jsonl") if line["kind"] == "event"]
    assert [line["step"] for line in events] == [STUCK_STEPS]


class FlatUntil:
    """A loss whose gradient is 0 in the steps before a number."""

    def __init__(self, step: int) -> None:
        self.step, self.calls = step, 0

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        self.calls += 1
        losses = token_objective(model, batch)
        factor = float(self.calls > self.step)
        return Losses({name: (factor * total, n) for name, (total, n) in losses.sums.items()})


def test_a_run_without_any_gradient_ends_with_an_error(tmp_path: Path) -> None:
    """Also if it was interrupted and resumed; one gradient before or after that is enough."""

    def start(out: str, flat: FlatUntil, *, resume: bool = False, steps: int = 6) -> None:
        config = settings("checkpoint.every=3", f"budget.steps={steps}", "schedule.kind=constant")
        batches = token_batches(config)
        train(
            flat,
            batches,
            config,
            model=TokenModel(0.0),
            out=tmp_path / out,
            resume=resume,
            allow_inexact=True,
        )

    never = FlatUntil(99)
    with pytest.raises(TrainingError, match=r"0 in all 3 steps.* No model is written"):
        start("never", never, steps=3)
    assert newest_checkpoint(tmp_path / "never").path.name == "ckpt-00000003"
    for _ in range(2):
        with pytest.raises(TrainingError, match="0 in all 6 steps"):
            start("never", never, resume=True)
    start("never", FlatUntil(0), resume=True, steps=7)
    start("last", FlatUntil(5))
    start("first", FlatUntil(0), steps=3)
    start("first", never, resume=True)


def test_a_run_that_trains_no_parameter_says_so(tmp_path: Path) -> None:
    class Frozen(TokenModel):
        def __init__(self) -> None:
            super().__init__(0.0)
            self.requires_grad_(False)
            self.free = nn.Parameter(torch.zeros(1))

    fitted = str(no_gradient_error(1, trainable=True, fitted=True))
    assert "texts that the model reads as the same tokens" in fitted
    assert "batching" not in fitted
    error = no_gradient_error(4, trainable=False)
    assert "No parameter of the model is trained" in str(error)
    config = settings("budget.steps=2")

    def objective(model: nn.Module, batch: Batch) -> Losses:
        assert isinstance(model, Frozen)
        sums = token_objective(model, batch).sums
        return Losses(
            {name: (total + 0 * model.free.sum(), n) for name, (total, n) in sums.items()}
        )

    with pytest.raises(TrainingError, match="The batches had nothing to learn from"):
        train(objective, token_batches(config), config, model=Frozen(), out=tmp_path)


def no_room(rows: int) -> Callable[[Batch], None]:
    def check(batch: Batch) -> None:
        if len(batch.rows) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    return check


@pytest.mark.parametrize("kind", ["token", "pair"])
def test_out_of_memory_halves_the_micro_batch_and_changes_nothing_else(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check = no_room(10)

    def small_token(model: nn.Module, batch: Batch) -> Losses:
        check(batch)
        return token_objective(model, batch)

    class SmallPair(PairObjective):
        def embed(self, model: nn.Module, batch: Batch) -> Tensor:
            check(batch)
            return super().embed(model, batch)

    small: Objective | InBatchObjective = small_token if kind == "token" else SmallPair()
    run(small, tmp_path / "small", "schedule.warmup=0")
    run(TASKS[kind][0], tmp_path / "large", "schedule.warmup=0")
    curves = [step_losses(read_log(tmp_path / name / "log.jsonl")) for name in ("small", "large")]
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)
    assert (
        "Step 1 did not fit in memory. From now on the micro-batch size is 8,"
        in capsys.readouterr().err
    )


def test_a_long_row_that_fits_alone_does_not_stop_the_halving(tmp_path: Path) -> None:
    """The limit is in tokens, and the longest row has three times those that two rows may have."""
    batching = ("batching.unit=tokens", "batching.size=60", "batching.window=1")
    overrides = (*batching, "schedule.warmup=0")
    lengths = token_batches(settings(*overrides)).lengths
    most = int(lengths.max()) // 3

    def small(model: nn.Module, batch: Batch) -> Losses:
        if len(batch.rows) > 1 and lengths[batch.rows].sum() > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return token_objective(model, batch)

    run(small, tmp_path / "small", *overrides)
    run(token_objective, tmp_path / "large", *overrides)
    curves = [step_losses(read_log(tmp_path / name / "log.jsonl")) for name in ("small", "large")]
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)


def test_a_row_that_never_fits_is_named(tmp_path: Path) -> None:
    def full(model: nn.Module, batch: Batch) -> Losses:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    for unit in ("rows", "tokens"):
        overrides = (f"batching.unit={unit}", "batching.size=50")
        batches = token_batches(settings(*overrides))
        rows = batches.rows(0, 0)
        row, most = rows[batches.lengths[rows].argmax()], batches.lengths[rows].max()
        with pytest.raises(TrainingError, match=f"Row {row} with {most} tokens does not fit"):
            run(full, tmp_path / unit, *overrides)


def test_a_step_that_never_fits_blames_no_row_for_a_loss_of_the_whole_batch(
    tmp_path: Path,
) -> None:
    class Full(PairObjective):
        def loss(self, embeddings: Tensor, targets: Tensor | None) -> Losses:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(TrainingError, match=r"^A step of 32 rows .* Make batching.size smaller"):
        run(Full(), tmp_path)


def test_other_errors_are_no_lack_of_memory() -> None:
    assert out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))
    assert out_of_memory(MemoryError())
    assert ran_out_of_memory(RuntimeError("can't allocate lock"))  # of Python's threading
    assert not out_of_memory(RuntimeError("shapes do not match"))
    assert not out_of_memory(ValueError("not enough memory"))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_says_how_to_go_on(
    tmp_path: Path, kind: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [0]

    def interrupted(model: nn.Module, batch: Batch) -> Losses:
        calls[0] += 1
        if calls[0] == 5:
            os.kill(os.getpid(), kind)
        return token_objective(model, batch)

    before = signal.getsignal(kind)
    with pytest.raises(KeyboardInterrupt):
        run(interrupted, tmp_path)
    assert signal.getsignal(kind) == before
    assert sorted(path.name for path in tmp_path.glob("ckpt-*"))[-1] == "ckpt-00000005"
    assert f"Resume with --resume {tmp_path}" in capsys.readouterr().err


def test_the_second_interrupt_is_not_held_back() -> None:
    with interrupts() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_ranking_loss_near_that_of_equal_scores_is_told_once() -> None:
    detector, equal = EqualScoresDetector(), math.log(4)
    told = [detector.see(1.37, equal, step / 200) for step in range(1, 201)]
    (warning,) = filter(None, told)
    assert told.index(warning) == 99  # after half of the run
    assert "The loss of the last 20 steps is 1.3700; it is 1.3863 if all candidates" in warning


def test_a_ranking_loss_that_falls_in_time_gives_no_warning() -> None:
    detector, equal = EqualScoresDetector(), math.log(4)
    losses = [equal] * 60 + [1.2] * 140
    told = [detector.see(loss, equal, step / 200) for step, loss in enumerate(losses, 1)]
    assert not any(told)
    short = EqualScoresDetector()
    assert not any(short.see(equal, equal, step / 19) for step in range(1, 20))
