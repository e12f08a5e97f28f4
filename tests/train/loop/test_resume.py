import contextlib
from pathlib import Path

import pytest
import torch

from sbert_search.base.files import use_disk
from sbert_search.config import to_mapping
from sbert_search.errors import CheckpointError, ConfigError, TrainingError
from sbert_search.train.loop.checkpoint import checkpoints, newest_checkpoint, save_checkpoint
from sbert_search.train.loop.loop import Result, train
from sbert_search.train.loop.objective import Batch, Batches, Rows
from sbert_search.train.loop.resume import differences, refuse_restart, restore
from sbert_search.train.loop.schedule import DevMetrics
from tests.faults import FAULTS, FULL, Fault, FaultDisk, Killed
from tests.train.small import (
    TASKS,
    TokenModel,
    lasting_lines,
    settings,
    token_batches,
    token_objective,
    unlike,
)

OVERRIDES = ("budget.steps=15", "checkpoint.every=4", "batching.micro_size=10")


class Stop(BaseException):
    """Ends a run in the middle of a step, as a kill does for what is on the disk."""


def stopping(batches: Batches, after: int) -> Batches:
    """Fail when the micro-batches of more steps than these are made."""
    collate, calls = batches.collate, [0]

    def counted(rows: Rows, epoch: int) -> Batch:
        calls[0] += 1
        if calls[0] > 4 * after:  # 32 rows in parts of 10
            raise Stop
        return collate(rows, epoch)

    batches.collate = counted
    return batches


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TASKS)
def test_a_run_in_pieces_ends_bit_for_bit_where_one_in_one_piece_does(
    tmp_path: Path, kind: str
) -> None:
    objective, data = TASKS[kind]
    config = settings(*OVERRIDES, "evaluation.every=4")
    evaluate = lambda model: {"size": sum(float(p.sum()) for p in model.parameters())}  # noqa: E731
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    train(objective, data(config), config, model=TokenModel(), out=whole, evaluate=evaluate)
    for number in range(20):
        torch.manual_seed(number)  # nothing may depend on what another process drew before
        try:
            train(
                objective,
                stopping(data(config), after=6),
                config,
                model=TokenModel(),
                out=pieces,
                evaluate=evaluate,
                resume=number > 0,
            )
            break
        except Stop:
            pass
    assert number > 1
    assert not unlike(whole, pieces)
    assert len(lasting_lines(whole)) == 15 + 5  # steps, and evaluations with the one at step 0


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_io_step_of_a_run_costs_no_bit(tmp_path: Path, fault: Fault) -> None:
    def go(out: Path) -> None:
        config = settings("budget.steps=3", "checkpoint.every=1")
        train(
            token_objective,
            token_batches(config),
            config,
            model=TokenModel(),
            out=out,
            resume=bool(checkpoints(out)),
        )

    go(tmp_path / "peace")
    for fail_at in range(1, 1000, 1 if FULL else 9):
        out, disk = tmp_path / str(fail_at), FaultDisk(fail_at, fault)
        with contextlib.suppress(Killed, CheckpointError, TrainingError), use_disk(disk):
            go(out)
        go(out)
        assert not unlike(tmp_path / "peace", out), fail_at
        if not disk.reached:
            break
    assert fail_at > 50


def start(out: Path, *overrides: str, steps: int = 4) -> None:
    config = settings(f"budget.steps={steps}", *overrides)
    train(token_objective, token_batches(config), config, model=TokenModel(), out=out)


def resume(out: Path, *overrides: str, rows: int = 200, allow_inexact: bool = False) -> int:
    config = settings("budget.steps=4", *overrides)
    batches = token_batches(config, rows)
    if rows != 200:
        batches.fingerprint = "other data"
    return train(
        token_objective,
        batches,
        config,
        model=TokenModel(),
        out=out,
        resume=True,
        allow_inexact=allow_inexact,
    ).state.step


def test_a_finished_run_has_nothing_to_do(tmp_path: Path) -> None:
    start(tmp_path)
    before = (tmp_path / "log.jsonl").read_bytes()
    assert resume(tmp_path) == 4
    assert (tmp_path / "log.jsonl").read_bytes() == before


def test_nothing_starts_or_restarts_silently(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        resume(tmp_path)
    start(tmp_path)
    with pytest.raises(CheckpointError, match="got to ckpt-00000004"):
        start(tmp_path)


def test_other_circumstances_are_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path)
    with pytest.raises(CheckpointError, match=r"recipe.optim.lr was 0.01, is 0.02.*allow_inexact"):
        resume(tmp_path, "optim.lr=0.02")
    with pytest.raises(CheckpointError, match="data was 'token data 3', is 'other data'"):
        resume(tmp_path, rows=100)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9")
        with pytest.raises(CheckpointError, match=r"versions.torch was .*, is '9.9'"):
            resume(tmp_path)
    torch.set_num_threads(2)
    with pytest.raises(CheckpointError, match="threads was 1, is 2"):
        resume(tmp_path)
    assert resume(tmp_path, "budget.steps=6", rows=100, allow_inexact=True) == 6
    assert "Resuming inexactly" in capsys.readouterr().err


def test_other_dev_data_are_refused_or_start_a_new_search_for_the_best(tmp_path: Path) -> None:
    values = iter([0.0, 0.9, 0.1])  # before the first step, on one file, on the other

    def go(dev: str, steps: int, *, resume: bool = True, allow_inexact: bool = False) -> Result:
        config = settings(f"budget.steps={steps}", "evaluation.every=2", "checkpoint.every=2")
        metrics = DevMetrics(("x",), lambda model: {"x": next(values)}, dev)
        return train(
            token_objective,
            token_batches(config),
            config,
            model=TokenModel(),
            out=tmp_path,
            evaluate=metrics,
            resume=resume,
            allow_inexact=allow_inexact,
        )

    assert go("one", 2, resume=False).state.best == 0.9
    with pytest.raises(CheckpointError, match="dev data was 'one', is 'other'"):
        go("other", 2)
    changed = go("other", 4, allow_inexact=True)
    assert (changed.state.best, changed.state.best_step) == (0.1, 4)


def test_what_is_shown_or_kept_may_change(tmp_path: Path) -> None:
    start(tmp_path)
    assert resume(tmp_path, "report.every_s=1", "checkpoint.keep=5") == 4


def test_another_model_is_refused(tmp_path: Path) -> None:
    config = settings("budget.steps=4")
    start(tmp_path)
    for model in (torch.nn.Linear(2, 2), TokenModel()):
        if isinstance(model, TokenModel):
            model.inner = torch.nn.Linear(16, 17)
        with pytest.raises(CheckpointError, match=r"of another model: .*inner"):
            train(
                token_objective,
                token_batches(config),
                config,
                model=model,
                out=tmp_path,
                resume=True,
            )


def test_differences_are_named_by_path() -> None:
    then = {"a": {"b": 1, "c": 2}, "d": None}
    assert differences(then, {"a": {"b": 1, "c": 3}, "e": 0}) == [
        "a.c was 2, is 3",
        "e was None, is 0",
    ]
    assert not differences(then, then)


def test_a_whole_recipe_is_kept_and_compared(tmp_path: Path) -> None:
    config = settings("budget.steps=4")

    def go(layers: int, resume: bool) -> None:
        recipe = {"layers": layers, "train": to_mapping(config)}
        batches, model = token_batches(config), TokenModel()
        train(
            token_objective,
            batches,
            config,
            model=model,
            out=tmp_path,
            recipe=recipe,
            resume=resume,
        )

    go(2, False)
    assert "layers = 2" in (tmp_path / "ckpt-00000004/recipe.toml").read_text()
    with pytest.raises(CheckpointError, match=r"recipe\.layers was 2, is 3"):
        go(3, True)


def test_a_run_that_resumes_with_another_dev_metric_looks_for_the_best_value_anew(
    tmp_path: Path,
) -> None:
    def go(figure: str, steps: int, *, resume: bool = False) -> Result:
        config = settings(
            f"budget.steps={steps}", "evaluation.every=1", f"evaluation.figure={figure}"
        )
        return train(
            token_objective,
            token_batches(config),
            config,
            model=TokenModel(),
            out=tmp_path,
            evaluate=lambda model: {"accuracy": 0.9, "matthews": 0.1},
            resume=resume,
            allow_inexact=resume,
        )

    assert go("accuracy", 2).state.best == 0.9
    state = go("matthews", 4, resume=True).state
    assert (state.best, state.best_step) == (0.1, 4)


@pytest.mark.parametrize("name", ["log.jsonl", "curves.svg", "model", "model/deep"])
def test_a_run_does_not_start_over_what_its_recipe_names(tmp_path: Path, name: str) -> None:
    named, elsewhere = tmp_path / name, tmp_path / "elsewhere"
    named.mkdir(parents=True)
    elsewhere.symlink_to(named)
    for path in (named, elsewhere):
        recipe = {"device": "auto", "first": {"data": {"train": ["absent", str(path)]}}}
        with pytest.raises(ConfigError, match=f"would overwrite .*, and its recipe reads {path}"):
            refuse_restart(tmp_path, recipe)
        refuse_restart(tmp_path / "other", recipe)


def test_a_run_does_not_replace_a_folder_that_is_of_no_run(tmp_path: Path) -> None:
    kept = tmp_path / "model" / "of another program.bin"
    kept.parent.mkdir()
    kept.write_bytes(b"kept")
    with pytest.raises(ConfigError, match=f"{tmp_path / 'model'} is of no training run"):
        refuse_restart(tmp_path, {"device": "auto"})
    assert kept.read_bytes() == b"kept"
    (tmp_path / "log.jsonl").touch()
    refuse_restart(tmp_path, {"device": "auto"})  # a run whose checkpoints were removed


def test_names_that_a_checkpoint_cannot_hold_are_refused(tmp_path: Path) -> None:
    for out, train_file in ((tmp_path, "\udcff.jsonl"), (tmp_path / "\udcff", "a.jsonl")):
        with pytest.raises(ConfigError, match=r"The name '.*\\udcff.*' is not UTF-8"):
            refuse_restart(out, {"data": {"train": train_file}})


def test_a_recipe_may_have_a_text_that_is_too_long_for_a_file_name(tmp_path: Path) -> None:
    refuse_restart(tmp_path, {"prompts": {"query": "Find a text that answers this. " * 20}})


def test_a_checkpoint_without_the_state_of_a_run_is_refused(tmp_path: Path) -> None:
    model = TokenModel()
    save_checkpoint(tmp_path, 1, {"model/a": torch.zeros(1)}, {"circumstances": 1}, "", None)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(CheckpointError, match="no table 'circumstances' in its state"):
        restore(newest_checkpoint(tmp_path), model, optimizer, {}, allow_inexact=False)
