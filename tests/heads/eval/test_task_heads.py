"""The experiments of task heads: a plan, runs that are kept, and a report that names the rest."""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import ROOT
from tests.eval.conftest import Script, assert_no_paths
from tests.heads.training.small import encoder_folder
from tests.heads.training.test_answer import questions
from tests.heads.training.test_tag import sentences

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(ROOT / "eval"))
    TRIALS: Any = importlib.import_module("task_heads_trials")


def packed(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Small files with the names and columns of the data sets."""
    folder = tmp_path / "data"
    texts = [
        {"sentence": f"the {'cat' if n % 2 else 'sun'} {n}", "label": n % 2} for n in range(60)
    ]
    pairs = [
        {"sentence1": row["sentence"], "sentence2": "it", "label": n % 2}
        for n, row in enumerate(texts)
    ]
    named = [
        row | {"label": ("not_entailment", "entailment")[n % 2]} for n, row in enumerate(pairs)
    ]
    for name in ("sst2/train", "sst2/dev", "cola/train", "cola/dev", "cola/dev_out_of_domain"):
        packed(folder / f"{name}.jsonl.gz", texts)
    for name in ("mrpc/train", "mrpc/dev", "mrpc/test"):
        packed(folder / f"{name}.jsonl.gz", pairs)
    for name in ("rte/train", "rte/dev"):
        packed(folder / f"{name}.jsonl.gz", named)
    for name in ("wnut17/train", "wnut17/dev", "wnut17/test"):
        packed(folder / f"{name}.jsonl.gz", sentences(20))
    packed(folder / "squad" / "dev_a.jsonl.gz", questions(40, True))
    asked = [row | {"title": f"other {row['title']}"} for row in questions(10, False)]
    packed(folder / "squad" / "xquad_en.jsonl.gz", asked)
    return folder


@pytest.mark.thorough
def test_the_plan_is_run_once_and_reported(
    tmp_path: Path,
    data: Path,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    work, out, model = tmp_path / "work", tmp_path / "out", encoder_folder(tmp_path)
    another = encoder_folder(tmp_path / "another", layers=1)  # a folder of equal name
    monkeypatch.setattr(TRIALS, "SEEDS", 1)
    quick = ("budget={steps=1}", "max_len=24", "device=cpu", "precision=fp32")
    settings = [part for override in quick for part in ("--set", override)]
    line = ["--data", data, "--work", work, "--out", out, "--model", model, *settings]

    def kept() -> dict[str, int]:
        return {file.stem: file.stat().st_mtime_ns for file in work.glob("*.json")}

    script("task_heads", "factors", *line, "--plan")
    shown = capsys.readouterr().out
    assert "rte-linear-probe-base-all-0" in shown
    assert "10 runs, about" in shown
    assert not kept()
    script("task_heads", "factors", *line, "--minutes", "1e-6")
    assert not kept()
    assert "rte-full-base-all-0" in (out / "task-heads.md").read_text().partition("Missing: ")[2]
    script("task_heads", "factors", *line)
    first = kept()
    assert len(first) == 10
    for changed in (["--set", "seed=1"], ["--model", another]):
        with pytest.raises(
            SystemExit, match=r"is the result of .* name another folder with --work"
        ):
            script("task_heads", "factors", *line, *changed)
    script("task_heads", "table", "own", *line, "--own", model)
    assert kept().items() >= first.items()
    record = json.loads((out / "task-heads.json").read_text())
    curve = {run.name for run in TRIALS.plan(("curve",))}
    assert set(record["missing"]) <= curve
    scores = {run["run"]["task"]: run["test"] for run in record["runs"]}
    assert {"accuracy", "matthews", "ece", "ece_before"} <= scores["CoLA"].keys()
    assert scores["SQuAD"].keys() == {"f1", "exact_match", "questions"}
    script("task_heads", *line, "--own", model, "--report")
    text = (out / "task-heads.md").read_text()
    assert "| linear probe |" in text
    assert "| SQuAD | exact_match |" in text
    assert f"{len(record['runs'])} runs in fp32; " in text
    before = json.loads((out / "task-heads.json").read_text())
    script("task_heads", "curve", *line, "--work", tmp_path / "new", "--report")
    after = json.loads((out / "task-heads.json").read_text())  # of all parts, and of --own
    assert after["runs"] == before["runs"]
    assert after["models"] == before["models"]
    for file in out.iterdir():
        assert_no_paths(file, tmp_path)
    again = ["table", "own", "factors", *line, "--work", tmp_path / "empty", "--own", model]
    script("task_heads", *again, "--plan")
    assert "runs, about 0 minutes" in capsys.readouterr().out  # the report has all of them
    script("task_heads", *again, "--set", "precision=bf16", "--plan")
    assert "runs, about 0 minutes" in capsys.readouterr().out
    script("task_heads", *again, "--set", "seed=1", "--plan")
    assert "runs, about 0 minutes" not in capsys.readouterr().out  # with other settings
    script("task_heads", *again[:-1], another, "--plan")
    assert "runs, about 0 minutes" not in capsys.readouterr().out  # with another model


def test_the_curve_is_drawn(tmp_path: Path) -> None:
    report: Any = importlib.import_module("task_heads_report")
    runs = TRIALS.plan(("curve",))
    made: dict[str, Any] = {"core_seconds": 60, "settings": ["precision=fp32", "precision=bf16"]}
    test = {"ece_before": 0.25, "ece": 0.125}
    results = {run: {"test": {"accuracy": 0.5 + run.seed / 10, **test}, **made} for run in runs}
    report.write_report(runs, results, {"base": "folder/tiny"}, tmp_path)
    assert "<svg" in (tmp_path / "task-heads.svg").read_text()
    text = (tmp_path / "task-heads.md").read_text()
    assert "| 100 | 60.0 ± 10.0 | 60.0 ± 10.0 |" in text
    assert "| MRPC | 25.0 ± 0.0 | 12.5 ± 0.0 | - | - |" in text


def test_the_plan_names_each_run_once() -> None:
    runs = TRIALS.plan(TRIALS.PARTS)
    assert len(runs) == len({run.name for run in runs})
    assert {run.seed for run in TRIALS.plan(("factors",))} == {0}
    few = TRIALS.Run("SST-2", "base", "full", 100, 0).settings()
    assert "data.limit=100" in few
    assert "budget.epochs=20" in few
    assert "evaluation.every=1000000000" in few
    whole = TRIALS.Run("SST-2", "base", "full", TRIALS.ALL, 0).settings()
    assert not any("limit" in setting for setting in whole)
