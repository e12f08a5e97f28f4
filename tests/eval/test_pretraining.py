"""`eval/pretraining.py`: each experiment from its start to its report, on small data."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sbert_search.cli.main import cli
from tests.eval.conftest import Script, any_revision, assert_no_paths

SHAPE = "layers = 1, hidden_size = 16, heads = 2, intermediate_size = 16, max_positions = 32"
QUICK = ("device=cpu", "budget={steps=2}", "batching.size=4", "evaluation.every=1")
PRETRAIN = (*QUICK, "segments.max_len=16", "checkpoint.every=2")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, script: Script) -> list[list[str]]:
    """Run the script's commands in this process, each in two steps, and list them."""
    commands: list[list[str]] = []

    def run(*words: object) -> str:
        line = [str(word) for word in words]
        commands.append(line)
        if line[0] in ("pretrain", "train") and "--resume" not in line:
            more: tuple[str, ...] = QUICK if line[0] == "train" else PRETRAIN
            more += (f"model={{{SHAPE}, pooler = true}}",) * (line[:2] == ["pretrain", "bert"])
            line = [*line, *(word for setting in more for word in ("--set", setting))]
        if line[:2] == ["tokenizer", "train"]:
            line[line.index("8000")] = "60"
        done = CliRunner().invoke(cli, line, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    monkeypatch.setattr(importlib.import_module("pretraining"), "command", run)
    monkeypatch.setattr("sbert_search.evaluate.tasks.find_task", any_revision)
    return commands


@pytest.mark.thorough
def test_masks_and_next_sentences_at_one_budget(
    said: list[list[str]], data: Path, tmp_path: Path, script: Script
) -> None:
    work, out = tmp_path / "work", tmp_path / "report"
    told = ("masks", "--data", data, "--work", work, "--report", out, "--seeds", 1)
    script("pretraining", *told)
    assert len(said) == 1 + 4 * 2  # a vocabulary, four models, four measures
    record = json.loads((out / "masks.json").read_text())
    assert [len(each["seeds"]) for each in record["figures"].values()] == [1] * 4
    assert record["command"].endswith("--data DATA --work WORK --report REPORT --seeds 1")
    assert_no_paths(out / "masks.json", data, tmp_path)
    assert (out / "masks.md").read_text().count("| dynamic masks, ") == 2

    script("pretraining", *told)
    assert len(said) == 9  # nothing is done again
    (work / "static-nsp-0" / "done.json").unlink()
    script("pretraining", *told)
    assert said[9:] == [["pretrain", "--resume", str(work / "static-nsp-0"), "--json"]]

    script("pretraining", "own", work / "static-nsp-0", "--work", work / "tokens", "--report", out)
    own = json.loads((out / "own.json").read_text())
    assert own["command"].startswith("python eval/pretraining.py own static-nsp-0 --work")
    assert own["figures"]["margin"] == own["figures"]["unigram_entropy"] - own["figures"]["mlm"]
    assert (out / "own-curves.svg").is_file()
    assert_no_paths(out / "own-recipe.toml", data, tmp_path)
    assert '"valid.jsonl.xz"' in (out / "own-recipe.toml").read_text()
    log = [json.loads(line) for line in (out / "own-log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if line["kind"] == "step"] == [1, 2]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (("own",), "own needs RUN, the folder of a finished run"),
        (("masks",), "masks needs --data, the folder of the data sets"),
        (("continued",), "continued needs --data, the folder of the data sets"),
    ],
)
def test_an_argument_that_an_experiment_needs_is_named(
    told: tuple[str, ...],
    message: str,
    tmp_path: Path,
    script: Script,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        script("pretraining", *told, "--work", tmp_path, "--report", tmp_path / "report")
    assert message in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


@pytest.mark.slow
def test_a_model_goes_on_and_is_tuned(
    said: list[list[str]],
    data: Path,
    model: Path,
    tmp_path: Path,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = importlib.import_module("pretraining")
    monkeypatch.setattr(module, "BASE", str(model))
    work, out = tmp_path / "work", tmp_path / "report"
    told = ("continued", "--data", data, "--work", work, "--report", out)
    script("pretraining", *told)
    record = json.loads((out / "continued.json").read_text())
    names = {"before", "after", "before, tuned", "after, tuned"}
    assert record["figures"]["ndcg_at_10"].keys() == names
    assert record["figures"]["held_out_mlm"]["first"] > 0
    assert_no_paths(out / "continued.json", data, model, tmp_path)
    steps = len(said)
    script("pretraining", *told)
    assert len(said) == steps


def test_a_long_log_is_thinned_but_for_its_evaluations(script: Script) -> None:
    module: Any = importlib.import_module("pretraining")
    log = [{"kind": kind, "step": n} for n in range(1, 2501) for kind in ("step", "dev")]
    kept = module.thinned(log)
    assert [line["step"] for line in kept if line["kind"] == "step"] == [*range(3, 2500, 3)]
    assert sum(line["kind"] == "dev" for line in kept) == 2500
