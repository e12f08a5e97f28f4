"""`eval/scifact_reranker.py`, then `eval/search_table.py`, on small data."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.eval.conftest import Script, any_revision, assert_no_paths


@pytest.mark.slow
def test_a_reranker_is_trained_chosen_and_tested_once(
    data: Path, model: Path, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    training: Any = importlib.import_module("scifact_reranker")
    small = ("max_len=24", "checkpoint.keep=1", "device=cpu", "precision=fp32")
    monkeypatch.setattr(training, "COMMON", small)
    monkeypatch.setattr("search_table.find_task", any_revision)
    work, out = tmp_path / "work", tmp_path / "report"
    told = ("--data", data, "--model", model, "--work", work, "--out", out)
    script("scifact_reranker", *told)
    choices = json.loads((out / "choices.json").read_text())
    assert choices["claims"] == 20
    assert len(choices["reranking"]["scores"]) == len(training.DEPTHS) * len(training.WEIGHTS)
    assert_no_paths(out / "choices.json", data, model, tmp_path)
    assert "| depth 50, weight 1.0 |" in (out / "choices.md").read_text()

    monkeypatch.setattr(training, "train_cross_encoder", None)  # nothing is trained again
    (work / "held-2.trec").unlink()
    script("scifact_reranker", *told)
    assert json.loads((out / "choices.json").read_text())["reranking"] == choices["reranking"]

    chosen = ("--choices", out / "choices.json", "--reranker", work / "final" / "model")
    tasks = ("--data", data, "--model", model, "--out", out, "scifact", "cranfield")
    script("search_table", *chosen, *tasks)
    table = json.loads((out / "table.json").read_text())
    assert table["scores"]["cranfield"].keys() == {"dense", "lexical", "hybrid", "reranked"}
    assert len(table["compared"]) == 6
    for record in (out / "table.json", *out.glob("*/*.json")):
        assert_no_paths(record, data, model, tmp_path)
    assert "| cranfield |" in (out / "reranked" / "retrieval.md").read_text()
    assert "| scifact |" in (out / "reranked" / "retrieval.md").read_text()
    shown = (out / "table.md").read_text()
    report = (out / "reranked" / "retrieval.md").read_text()
    (out / "reranked" / "cranfield.json").unlink()
    script("search_table", *chosen, *tasks)  # goes on where it was stopped
    again = (out / "reranked" / "retrieval.md").read_text()
    assert again.partition("## cranfield")[0] == report.partition("## cranfield")[0]
    assert (out / "table.md").read_text() == shown
    monkeypatch.setattr("search_table.evaluate_retrieval", None)  # the tests are run once
    script("search_table", *chosen, *tasks)
    assert (out / "table.md").read_text() == shown

    choices["fusion"]["fusion"]["dense_weight"] = 0.125
    (out / "choices.json").write_text(json.dumps(choices))
    with pytest.raises(SystemExit, match=r"hybrid/scifact.json was made with fusion dense_weight"):
        script("search_table", *chosen, *tasks)
