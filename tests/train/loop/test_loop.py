from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers.optimization import get_linear_schedule_with_warmup

from sbert_search.errors import ConfigError, TrainingError
from sbert_search.models.logit_losses import IGNORED
from sbert_search.train.loop.log import read_log
from sbert_search.train.loop.loop import Result, train
from sbert_search.train.loop.objective import Batch, Losses
from sbert_search.train.loop.schedule import FEWEST_ROWS, DevMetrics
from tests.train.small import (
    TASKS,
    Task,
    TokenModel,
    settings,
    step_losses,
    table,
    token_batches,
    token_objective,
)


def run(
    out: Path,
    *overrides: str,
    task: Task = TASKS["token"],
    **arguments: Any,
) -> tuple[TokenModel, Result, list[float]]:
    config, model = settings(*overrides), TokenModel(dropout=0.0)
    objective, batches = task
    result = train(objective, batches(config), config, model=model, out=out, **arguments)
    return model, result, step_losses(read_log(out / "log.jsonl"))


def test_twenty_steps_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    overrides = ("budget.steps=20", "schedule.warmup=4", "optim.lr=3e-3", "optim.clip=0.5")
    model, _, losses = run(tmp_path, *overrides)

    plain = TokenModel(0.0)
    decayed = [p for n, p in plain.named_parameters() if not n.endswith("bias") and "norm" not in n]
    exempt = [p for n, p in plain.named_parameters() if n.endswith("bias") or "norm" in n]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": exempt, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    make_schedule: Callable[..., Any] = get_linear_schedule_with_warmup
    schedule = make_schedule(optimizer, 4, 20)
    batches = token_batches(settings())
    steps = [(e, s) for e in range(4) for s in range(batches.n_steps(e))][:20]
    for (epoch, step), ours in zip(steps, losses, strict=True):
        batch = batches.collate(batches.rows(epoch, step), epoch)
        logits = plain(table(batch)["input_ids"])
        loss = cross_entropy(logits, table(batch)["labels"], ignore_index=IGNORED)
        loss = loss + 1e-3 * logits.pow(2).sum(-1).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        assert ours == pytest.approx(loss.item(), abs=1e-6)
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter, plain.get_parameter(name), rtol=0, atol=1e-6), name


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TASKS)
def test_a_batch_in_parts_is_the_batch(tmp_path: Path, kind: str) -> None:
    def curve(folder: str, *overrides: str) -> tuple[TokenModel, list[float]]:
        out = tmp_path / folder
        shared = ("optim.lr=2e-3", "optim.clip=0", "schedule.warmup=0")
        model, _, losses = run(out, *shared, *overrides, task=TASKS[kind])
        return model, losses

    whole, _ = curve("a", "budget.steps=1")
    parts, _ = curve("b", "budget.steps=1", "batching.micro_size=8")
    for name, parameter in whole.named_parameters():
        one, other = parameter.grad, parts.get_parameter(name).grad
        if one is None or other is None:  # the output's bias has no part in the in-batch loss
            assert one is other
        else:
            assert torch.allclose(one, other, rtol=0, atol=1e-6), name
    _, long = curve("c", "budget.steps=50")
    _, long_parts = curve("d", "budget.steps=50", "batching.micro_size=8")
    assert long == pytest.approx(long_parts, abs=1e-5)
    assert min(long) < 0.8 * long[0]


def test_every_budget_ends_its_run(tmp_path: Path) -> None:
    for number, (budget, steps) in enumerate(
        [({"epochs": 1.5}, 9), ({"tokens": 500}, 3), ({"minutes": 1e-9}, 1), ({"steps": 4}, 4)]
    ):
        config, model = settings(budget=budget), TokenModel()
        batches = token_batches(config)
        result = train(token_objective, batches, config, model=model, out=tmp_path / str(number))
        assert result.stopped == "budget"
        assert result.state.step == steps
        assert result.last.name == f"ckpt-{steps:08d}"
    assert result.state.rows == 4 * 32


def test_a_stale_dev_figure_ends_a_run_and_the_best_checkpoint_is_kept(tmp_path: Path) -> None:
    seen: list[int] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert not model.training
        assert not torch.is_grad_enabled()
        seen.append(len(seen))
        return {"other": 0.0, "error": [0.3, 0.9, 0.4, 0.6, 0.5, 0.45, 0.1][seen[-1]]}

    overrides = (
        "budget.steps=100",
        "checkpoint.every=2",
        "evaluation.every=3",
        "evaluation.figure=error",
        "evaluation.higher_is_better=false",
        "evaluation.patience=3",
    )
    model, result, _ = run(tmp_path, *overrides, evaluate=evaluate)
    assert model.training
    assert result.stopped == "patience"
    assert (result.state.step, result.state.best, result.state.best_step) == (15, 0.4, 6)
    assert result.best == tmp_path / "ckpt-00000006"
    kept = sorted(path.name for path in tmp_path.glob("ckpt-*"))
    assert kept == ["ckpt-00000006", "ckpt-00000014", "ckpt-00000015"]
    dev = [
        line["figures"]["error"]
        for line in read_log(tmp_path / "log.jsonl")
        if line["kind"] == "dev"
    ]
    assert dev == [0.3, 0.9, 0.4, 0.6, 0.5, 0.45]  # the first, of step 0, is no candidate


@pytest.mark.parametrize("higher", [True, False])
def test_of_equal_dev_figures_the_latest_is_the_best_and_patience_counts_from_the_first(
    tmp_path: Path, higher: bool
) -> None:
    values = iter([0.1, 0.5, 0.5, 0.5 - 0.1 * (2 * higher - 1), 0.5, 0.9])
    better = f"evaluation.higher_is_better={str(higher).lower()}"
    overrides = ("budget.steps=9", "evaluation.every=1", "evaluation.patience=3", better)
    _, result, _ = run(tmp_path, *overrides, evaluate=lambda model: {"x": next(values)})
    assert (result.stopped, result.state.step) == ("patience", 4)
    assert (result.state.best, result.state.best_step) == (0.5, 4)
    assert result.best == tmp_path / "ckpt-00000004"


@pytest.mark.parametrize("rows", [1, FEWEST_ROWS - 1, FEWEST_ROWS, None])
def test_dev_data_choose_only_if_they_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: int | None
) -> None:
    values = iter([0.1, 0.9, 0.2, 0.3])
    metrics = DevMetrics(("x",), lambda model: {"x": next(values)}, rows=rows)
    overrides = ("budget.steps=3", "evaluation.every=1", "checkpoint.every=1")
    _, result, _ = run(tmp_path, *overrides, evaluate=metrics)
    few = rows is not None and rows < FEWEST_ROWS
    assert result.best == (None if few else tmp_path / "ckpt-00000001")
    assert result.last == tmp_path / "ckpt-00000003"
    lines = [each for each in read_log(tmp_path / "log.jsonl") if each["kind"] == "dev"]
    assert [line["figures"]["x"] for line in lines] == [0.1, 0.9, 0.2, 0.3]
    assert (f"The dev data have {rows} rows, and fewer than 50" in capsys.readouterr().err) == few


def test_patience_needs_dev_data_that_can_choose(tmp_path: Path) -> None:
    metrics = DevMetrics(("x",), lambda model: {"x": 0.0}, rows=6)
    for evaluate, problem in ((metrics, "only 6 dev rows, fewer than 50"), (None, "no dev data")):
        with pytest.raises(ConfigError, match=f"patience is 2, but there are {problem}"):
            run(tmp_path / "run", "evaluation.patience=2", evaluate=evaluate)


def test_an_unknown_dev_figure_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'spearman'"):
        run(tmp_path, "evaluation.figure=spearmen", evaluate=lambda model: {"spearman": 1.0})


def test_an_unknown_dev_figure_is_refused_before_the_first_step(tmp_path: Path) -> None:
    figures = DevMetrics(("spearman",), lambda model: {"spearman": 1.0})
    with pytest.raises(ConfigError, match="did you mean 'spearman'"):
        run(tmp_path / "run", "evaluation.figure=spearmen", evaluate=figures)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_no_generator_takes_is_refused(seed: int) -> None:
    with pytest.raises(ConfigError, match=f"seed is {seed:,}"):
        settings(f"seed={seed}")


@pytest.mark.thorough
def test_bf16_trains_fp32_weights_to_about_the_same_loss(tmp_path: Path) -> None:
    _, _, exact = run(tmp_path / "a", "budget.steps=30")
    model, _, rounded = run(tmp_path / "b", "budget.steps=30", "precision=bf16")
    assert model.inner.weight.dtype == torch.float32
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.02)


def test_counts_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    def wrong(model: nn.Module, batch: Batch) -> Losses:
        losses = token_objective(model, batch)
        total, count = losses.sums["tokens"]
        return Losses({"tokens": (total, count + 1), "size": losses.sums["size"]})

    def absent(model: nn.Module, batch: Batch) -> Losses:
        return Losses({"size": token_objective(model, batch).sums["size"]})

    with pytest.raises(TrainingError, match="tokens summed"):
        run(tmp_path / "a", task=(wrong, token_batches))
    with pytest.raises(TrainingError, match=r"\['size'\]"):
        run(tmp_path / "b", task=(absent, token_batches))
