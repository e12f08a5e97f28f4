"""The comparison with logistic regression: equal draws, kept results, and a report."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import ROOT
from tests.eval.conftest import Script, assert_no_paths
from tests.heads.eval.test_task_heads import packed
from tests.heads.training.test_classify import texts

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(ROOT / "eval"))
    FEW: Any = importlib.import_module("few_labels")


def test_draws_have_equally_many_rows_of_each_class_and_repeat() -> None:
    labels = ["b", "a", "a"] * 20
    for size, number in ((8, 0), (8, 1), (16, 0)):
        rows = FEW.draw(labels, size, number)
        assert rows == FEW.draw(labels, size, number)
        assert Counter(labels[row] for row in rows) == {"a": size, "b": size}
        assert len(set(rows)) == 2 * size
    assert FEW.draw(labels, 8, 0) != FEW.draw(labels, 8, 1)


def test_made_messages_are_the_same_each_time_and_not_both_drawn_and_tested() -> None:
    train, test = FEW.made_messages()
    assert (train, test) == FEW.made_messages()
    assert Counter(test.labels) == dict.fromkeys(["account", "billing", "delivery", "product"], 100)
    assert not {*train.texts} & {*test.texts}


@pytest.mark.thorough
def test_both_classifiers_learn_from_the_same_draws(
    tmp_path: Path, model: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FEW, "SIZES", (4,))
    rows = [{"sentence": r["sentence"], "label": len(r["animals"]) % 2} for r in texts(60)]
    for train, tests in FEW.FILES.values():
        packed(tmp_path / train, rows[:40])
        for test in tests:
            packed(tmp_path / test, rows[40:])
    given = ("--data", tmp_path, "--model", model, "--draws", 2, "--work", tmp_path / "work")
    with pytest.MonkeyPatch.context() as quick:  # the tiny model has fewer positions
        recipe = FEW.load_recipe
        quick.setattr(FEW, "load_recipe", lambda *a: recipe(*a[:3], [*a[3], "max_len=24"]))
        quick.setattr(FEW, "LEAST", -100.0)
        for _ in range(2):  # the second call reads the results that are kept
            script("few_labels", *given, "--out", tmp_path / "report")
    report = json.loads((tmp_path / "report" / "few-labels.json").read_bytes())
    assert [cell["draws"] for cell in report["cells"]] == [2, 2, 2]
    assert report["all"]["draws"] == 6
    assert abs(report["all"]["difference"]) < 5
    assert "| made messages | 4 |" in (tmp_path / "report" / "few-labels.md").read_text()
    assert_no_paths(tmp_path / "report" / "few-labels.json", tmp_path)
