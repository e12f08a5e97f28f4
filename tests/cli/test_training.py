"""What every command that trains does with a recipe, on a model of a few numbers."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from sbert_search.cli.train import Trainer, training_command
from sbert_search.errors import CheckpointError, ConfigError
from sbert_search.train.loop import loop
from sbert_search.train.loop.loop import TrainConfig
from tests.train.small import TokenModel, token_batches, token_objective, unlike


def accuracy(model: nn.Module) -> dict[str, float]:
    """Return 0.25 for a model that is not trained yet and 0.5 for any other."""
    start, now = TokenModel().state_dict(), model.state_dict()
    return {"accuracy": 0.25 if all(torch.equal(start[name], now[name]) for name in now) else 0.5}


def train(config: TrainConfig, out: Path, *, resume: bool, allow_inexact: bool) -> loop.Result:
    return loop.train(
        token_objective,
        token_batches(config),
        config,
        model=TokenModel(),
        out=out,
        evaluate=accuracy,
        resume=resume,
        allow_inexact=allow_inexact,
    )


@training_command("pretrain")
def command() -> tuple[type[TrainConfig], Trainer[TrainConfig]]:
    """Train a model of a few numbers."""
    return TrainConfig, train


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "short.toml"
    path.write_text('device = "cpu"\n[budget]\nsteps = 4\n[evaluation]\nevery = 2\n')
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [*map(str, arguments), "--quiet"])


def facts(*arguments: object) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_short_run_is_told_in_units_that_people_read(recipe: Path, tmp_path: Path) -> None:
    shown = dict(
        re.split(r"  +", line, maxsplit=1)
        for line in run(recipe, "--out", tmp_path / "run").stdout.splitlines()[:-1]
    )
    assert (shown["steps"], shown["full epochs"]) == ("4", "0")
    assert re.fullmatch(r"\d+\.\d s", shown["time"])
    assert shown["dev accuracy"] == "0.5000"
    assert shown.keys().isdisjoint({"epochs", "minutes"})


def test_a_run_ends_with_the_next_command_and_says_if_nothing_was_measured(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "run/ckpt-00000004/model"
    *facts, last = run(recipe, "--out", tmp_path / "run").stdout.splitlines()
    assert last == f"Use it: sbert-search train bi-encoder PAIRS --model {model}"
    assert not any(line.startswith("Nothing") for line in facts)
    monkeypatch.setattr(sys.modules[__name__], "accuracy", None)
    *_, measured, last = run(recipe, "--out", tmp_path / "bare").stdout.splitlines()
    assert measured.startswith("Nothing was measured, since there are no dev data; --dev")
    assert last.endswith("bare/ckpt-00000004/model")


def test_a_metric_that_is_not_finite_is_null_in_json(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "accuracy", lambda model: {"accuracy": math.nan})
    assert facts(recipe, "--out", tmp_path / "run")["figures"] == {"accuracy": None}


def test_overrides_and_options_change_the_recipe(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    told = facts(recipe, "--out", out, "--set", "budget.steps=3", "--set", "seed=5", "--seed", 7)
    assert told["steps"] == 3
    assert told["figures"] == {"accuracy": 0.5}
    assert told["figures_at_start"] == {"accuracy": 0.25}
    assert told["last"] == str(out / "ckpt-00000003")
    assert told["best"] == str(out / "ckpt-00000003")  # as good as that of step 2
    saved = (out / "ckpt-00000003" / "recipe.toml").read_text()
    assert "seed = 7" in saved


def test_the_command_line_wins_over_the_environment_with_set_too(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBERT_SEARCH_SEED", "3")
    saved = "ckpt-00000004/recipe.toml"
    facts(recipe, "--out", tmp_path / "a")
    assert "seed = 3" in (tmp_path / "a" / saved).read_text()
    facts(recipe, "--out", tmp_path / "b", "--set", "seed=5")
    assert "seed = 5" in (tmp_path / "b" / saved).read_text()
    assert facts("--resume", tmp_path / "b")["steps"] == 4  # else: seed was 5, is 3


def test_a_run_goes_on_by_its_own_recipe_to_the_same_end(recipe: Path, tmp_path: Path) -> None:
    facts(recipe, "--out", tmp_path / "whole")
    short = ("--set", "schedule.kind=constant", "--set", "budget.steps=2")
    facts(recipe, "--out", tmp_path / "parts", *short)
    refused = run(
        "--resume", tmp_path / "parts", "--set", "optim.lr=1.0", "--set", "budget.steps=4"
    )
    assert isinstance(refused.exception, CheckpointError)
    assert "optim.lr was 2e-05, is 1.0" in str(refused.exception)
    assert facts("--resume", tmp_path / "parts")["steps"] == 2
    longer = ("--set", "budget.steps=4", "--allow-inexact")
    assert facts("--resume", tmp_path / "parts", *longer)["steps"] == 4
    facts(recipe, "--out", tmp_path / "constant", "--set", "schedule.kind=constant")
    assert not unlike(tmp_path / "constant", tmp_path / "parts")
    assert unlike(tmp_path / "whole", tmp_path / "parts")


@dataclass(frozen=True, kw_only=True)
class WithText(TrainConfig):
    text: str


@training_command("pretrain")
def command_with_text() -> tuple[type[WithText], Trainer[WithText]]:
    """Train with a recipe whose text is a setting without a default."""
    return WithText, train


def test_a_recipe_beside_resume_without_its_settings_is_told_to_leave_it_out(
    recipe: Path, tmp_path: Path
) -> None:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(command_with_text, [*map(str, arguments), "--quiet"])

    out = tmp_path / "run"
    assert run(recipe, "--set", "text=x", "--out", out).exit_code == 0
    assert str(run(recipe).exception) == "The setting text is missing; add it."
    refused = run(recipe, "--resume", out)
    assert "text is missing; add it. A run has a recipe of its own" in str(refused.exception)
    assert f"leave out {recipe} to go on with that of {out}" in str(refused.exception)
    assert run("--resume", out).exit_code == 0


def test_the_folder_of_a_run_is_named_after_its_recipe(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert facts("short.toml")["last"] == "runs/short/ckpt-00000004"
    again = run("short.toml")
    assert isinstance(again.exception, CheckpointError)
    assert "runs/short holds a run that got to ckpt-00000004. Train" in str(again.exception)
    assert "resume that run with resume=True." in str(again.exception)


def test_wrong_usage_names_what_to_do(recipe: Path, tmp_path: Path) -> None:
    assert "Name a RECIPE" in run().output
    assert "omit --out" in run("--resume", tmp_path, "--out", tmp_path / "x").output
    assert isinstance(run("--resume", tmp_path).exception, CheckpointError)
    unknown = run(recipe, "--set", "optim.lrr=1")
    assert isinstance(unknown.exception, ConfigError)
    assert "did you mean 'lr'" in str(unknown.exception)


def test_people_get_the_dev_figures_line_by_line(recipe: Path, tmp_path: Path) -> None:
    lines = dict(
        line.split("  ", 1)
        for line in run(recipe, "--out", tmp_path / "r").stdout.splitlines()[:-1]
    )
    assert lines["dev accuracy"].strip() == "0.5000"
    assert lines["dev accuracy at step 0"].strip() == "0.2500"
