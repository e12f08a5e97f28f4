from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.eval.conftest import Script, any_revision, assert_no_paths


@pytest.mark.thorough
def test_the_remedy_that_is_best_on_dev_data_is_tested_alone(
    data: Path, model: Path, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbert_search.lab.anisotropy.analyze.find_task", any_revision)
    monkeypatch.setattr("anisotropy.find_task", any_revision, raising=False)
    work, report = tmp_path / "work", tmp_path / "report"
    line = (f"tiny={model}", "--data", data, "--work", work, "--report", report)
    script("anisotropy", *line)
    tiny = json.loads((report / "report.json").read_text())["models"]["tiny"]
    assert tiny["dev"].keys() == {"stsb-dev", "scifact"}
    best = {task: max(scores, key=scores.get) for task, scores in tiny["dev"].items()}
    chosen = {"stsb" if task == "stsb-dev" else task: name for task, name in best.items()}
    expected = {task: name for task, name in chosen.items() if name != "none"}
    assert {task: test["remedy"] for task, test in tiny["test"].items()} == expected
    assert expected  # one of the tasks has a remedy with this model
    for task, test in tiny["test"].items():
        assert {each.name for each in (work / "tiny" / task).iterdir()} == {"none", test["remedy"]}
        assert test["low"] <= test["with"] - test["without"] <= test["high"]
    shown = (report / "report.md").read_text()
    assert f"| tiny | {len(tiny['layers']) - 1} |" in shown
    assert (report / "tiny" / "anisotropy.svg").exists()
    for record in (report / "report.json", report / "tiny" / "anisotropy.json"):
        assert_no_paths(record, data, model, tmp_path)

    monkeypatch.setattr("anisotropy.analyze_anisotropy", None)  # nothing is measured again
    script("anisotropy", *line)
    assert (report / "report.md").read_text() == shown
