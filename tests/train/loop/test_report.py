import builtins
import math
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from sbert_search.base.distributed import Ranks
from sbert_search.base.files import use_disk
from sbert_search.base.progress import set_quiet
from sbert_search.errors import ConfigError, TrainingError
from sbert_search.train.loop.gradients import StepContext, StepMetrics
from sbert_search.train.loop.log import MOST_POINTS, Log, LogLine, draw_curves, read_log
from sbert_search.train.loop.loop import train
from sbert_search.train.loop.report import Report, matrix_parameters
from sbert_search.train.loop.schedule import RunState, Schedule
from tests.faults import FaultDisk
from tests.train.small import DIM, VOCAB, TokenModel, settings, token_batches, token_objective


def run(out: Path, *overrides: str, dev: float = 0.5) -> list[LogLine]:
    config = settings("budget.steps=8", "evaluation.every=4", *overrides)
    train(
        token_objective,
        token_batches(config),
        config,
        model=TokenModel(),
        out=out,
        evaluate=lambda model: {"spearman": dev},
    )
    return read_log(out / "log.jsonl")


def test_a_person_sees_where_the_run_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", "report.every_s=0")
    short, *lines = capsys.readouterr().err.splitlines()
    assert short.startswith("8 optimizer steps may be too few to train a model.")
    assert len(lines) == 8
    assert "step 8  100%  loss " in lines[-1]
    for part in (
        "spearman 0.5000",
        " tokens/s",
        " GiB",
        " left",
    ):
        assert part in lines[-1], part
    assert "GEMM" not in lines[-1]
    assert "rate" not in lines[-1]
    run(tmp_path / "b", "report.unit=pairs")
    assert " pairs/s" in capsys.readouterr().err
    set_quiet(True)
    run(tmp_path / "c")
    set_quiet(False)
    assert capsys.readouterr().err.splitlines() == [short]  # a warning


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        ({"steps": 49}, "49 optimizer steps may be too few"),
        ({"steps": 50}, ""),
        ({"epochs": 0.25}, "2 optimizer steps may be too few"),
        ({"tokens": 1}, "1 optimizer step may be too few"),
    ],
)
def test_a_run_of_few_steps_is_told_once(
    budget: dict[str, float], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings(budget=budget)
    train(token_objective, token_batches(config), config, model=TokenModel(), out=tmp_path)
    lines = [line for line in capsys.readouterr().err.splitlines() if "too few" in line]
    assert [line[: len(told)] for line in lines] == [told] * bool(told)


def test_the_log_has_every_step_and_evaluation(tmp_path: Path) -> None:
    log = run(tmp_path)
    steps = [line for line in log if line["kind"] == "step"]
    assert [line["step"] for line in steps] == list(range(1, 9))
    first = steps[0]
    assert first["losses"].keys() == {"tokens", "size"}
    assert first["loss"] == pytest.approx(
        first["losses"]["tokens"] + 1e-3 * first["losses"]["size"]
    )
    assert 0 <= first["figures"]["accuracy"] <= 1
    assert [line["epoch"] for line in steps] == [0, 0, 0, 0, 0, 1, 1, 1]
    dev = [line for line in log if line["kind"] == "dev"]
    assert [(line["step"], line["figures"]) for line in dev] == [
        (0, {"spearman": 0.5}),
        (4, {"spearman": 0.5}),
        (8, {"spearman": 0.5}),
    ]
    assert [line["kind"] for line in log if line["kind"] == "speed"] == ["speed"]


def test_a_log_goes_on_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(path, after_step=0)
    for step in (1, 2, 3):
        log.write("step", step, loss=0.1)
    log.close()
    garbage = b"\0\0\0\n\xff\xfe\n[]\n{}\n"  # left by a power failure
    path.write_bytes(path.read_bytes() + garbage + b'{"kind": "st')  # cut off by a kill
    Log(path, after_step=2).close()
    assert [line["step"] for line in read_log(path)] == [1, 2]


def test_a_metric_that_is_not_finite_is_null_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(path, after_step=0)
    log.write("dev", 1, figures={"spearman": math.nan, "accuracy": 0.5})
    log.close()
    Log(path, after_step=1).close()  # a resumed run writes the kept lines again
    assert b'{"spearman": null, "accuracy": 0.5}' in path.read_bytes()
    (line,) = read_log(path)
    assert math.isnan(line["figures"]["spearman"])


@pytest.mark.parametrize("fault", ["enospc", "eio", "short"])
def test_a_log_that_cannot_be_written_stops_the_run_by_name(tmp_path: Path, fault: Any) -> None:
    log = Log(tmp_path / "log.jsonl", after_step=0)
    with use_disk(FaultDisk(1, fault)), pytest.raises(TrainingError, match=r"log\.jsonl cannot"):
        log.write("step", 1, loss=0.1)
    with use_disk(FaultDisk(1, "eio")), pytest.raises(TrainingError, match="Free disk space"):
        log.sync()
    log.close()


def test_event_files_are_written_on_request(tmp_path: Path) -> None:
    run(tmp_path, "report.tensorboard=true")
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_absent_tensorboard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "torch.utils.tensorboard":
            raise ImportError(name)
        return real(name, *arguments)

    closed, close = list[Path](), Log.close

    def closing_log(log: Log) -> None:
        closed.append(log.path)
        close(log)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(Log, "close", closing_log)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[train\]'"):
        run(tmp_path, "report.tensorboard=true")
    assert closed == [tmp_path / "log.jsonl"]


@pytest.mark.parametrize(("rank", "written"), [(0, 8), (1, 0)])
def test_only_the_first_rank_keeps_losses(tmp_path: Path, rank: int, written: int) -> None:
    config = settings("budget.steps=8")
    schedule = Schedule(config.schedule, config.budget, token_batches(config))
    context = StepContext(torch.device("cpu"), torch.float32, Ranks(rank, 2), 0)
    state = RunState()
    with closing(Report(config.report, tmp_path, TokenModel(), state, context, schedule)) as report:
        for state.step in range(1, 9):
            report.step(state, StepMetrics(0.5, {"tokens": 0.5}, {}, 1.0), 0.1)
        assert len(report._losses) == written
    assert len(read_log(tmp_path / "log.jsonl")) == written


def test_a_log_that_cannot_be_read_is_named_and_ends_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> list[LogLine]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("sbert_search.train.loop.report.read_log", fails)
    run(tmp_path)
    assert f"curves of {tmp_path / 'log.jsonl'} cannot be drawn" in capsys.readouterr().err


def test_matrices_count_and_tables_do_not() -> None:
    assert matrix_parameters(TokenModel()) == DIM * DIM
    both = nn.Sequential(nn.Embedding(VOCAB, DIM), nn.Linear(DIM, 3), nn.LayerNorm(3))
    assert matrix_parameters(both) == 3 * DIM
    both.append(nn.Linear(3, 5).requires_grad_(False))  # a frozen layer takes no part in a step
    assert matrix_parameters(both) == 3 * DIM


def test_curves_are_drawn_from_the_log(tmp_path: Path) -> None:
    run(tmp_path, dev=0.25)
    root = ElementTree.fromstring((tmp_path / "curves.svg").read_text())
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"loss", "dev spearman", "learning rate", "8"} <= set(texts)


def test_long_curves_are_thinned_and_empty_logs_drawn() -> None:
    log: list[LogLine] = [
        {"kind": "step", "step": i, "loss": 1.0 / i, "lr": 0.1} for i in range(1, 10_001)
    ]
    curve = next(part for part in draw_curves(log).split("<path ") if 'fill="none"' in part)
    assert 2 < curve.count("L") < MOST_POINTS
    assert ElementTree.fromstring(draw_curves([])) is not None
    endless: list[LogLine] = [
        {**line, "loss": float("inf"), "lr": float("nan")} for line in log[:3]
    ]
    assert ElementTree.fromstring(draw_curves(endless)) is not None
    assert draw_curves([*log, *endless[:1]]).count("nan") == 0


def test_a_dev_figure_that_some_evaluations_lack_is_drawn_where_it_is() -> None:
    log: list[LogLine] = [
        {"kind": "dev", "step": 0, "figures": {"mrr": 0.1}},
        {"kind": "dev", "step": 9, "figures": {"mrr": 0.2, "ndcg": 0.3}},
    ]
    drawn = draw_curves(log)
    assert "dev mrr" in drawn
    assert "dev ndcg" in drawn


def test_memory_is_told_of_the_device_at_hand(tmp_path: Path) -> None:
    speed = next(line for line in run(tmp_path) if line["kind"] == "speed")
    assert speed["memory_bytes"] > 1 << 20
    assert speed["tokens_per_s"] > 0
    assert 0 < speed["gemm_share"] < 1
    assert torch.get_num_threads() == 1
