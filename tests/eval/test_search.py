"""`eval/scifact_reranker.py`, then `eval/search_table.py`, on small data."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sbert_search.evaluate.tasks import EvalTask, Kind
from tests.eval.conftest import Script, any_revision, assert_no_paths
from tests.models.tiny import tiny_bi_encoder, tiny_cross_encoder


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


@pytest.fixture
def told(data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The arguments of `search_table` for two tasks; its reports are written to ``out``."""
    monkeypatch.setattr("search_table.find_task", any_revision)
    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "scorer")
    choices = {"fusion": {"fusion": {}}, "reranking": {"weight": 1.0, "depth": 5}}
    (tmp_path / "choices.json").write_text(json.dumps(choices))
    paths = ("--choices", tmp_path / "choices.json", "--reranker", tmp_path / "scorer")
    out = ("--out", tmp_path / "out", "scifact", "cranfield")
    return ["--data", data, "--model", model, *paths, *out]


@pytest.mark.thorough
def test_a_report_keeps_the_tasks_after_one_that_is_evaluated_again(
    told: list[object], tmp_path: Path, script: Script
) -> None:
    script("search_table", *told)
    report = tmp_path / "out" / "dense" / "retrieval.md"
    assert all(f"## {name}" in report.read_text() for name in ("scifact", "cranfield"))
    (tmp_path / "out" / "dense" / "scifact.json").unlink()
    script("search_table", *told)
    assert all(f"## {name}" in report.read_text() for name in ("scifact", "cranfield"))
    assert "nDCG@10 with the bootstrap" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.thorough
def test_a_report_of_other_models_is_refused(
    told: list[object], tmp_path: Path, script: Script
) -> None:
    script("search_table", *told)
    scorer, embedder = tiny_cross_encoder(tmp_path / "a"), tiny_bi_encoder(tmp_path / "b")
    with torch.no_grad():
        next(scorer.parameters()).add_(1)
        next(embedder.parameters()).add_(1)
    scorer.save(tmp_path / "other scorer")
    with pytest.raises(
        SystemExit, match=r"made with reranker weights sha256 .* remove this report"
    ):
        script("search_table", *told, "--reranker", tmp_path / "other scorer")
    embedder.save(tmp_path / "model")
    with pytest.raises(SystemExit, match="made with model weights_sha256 "):
        script("search_table", *told, "--model", tmp_path / "model")


@pytest.mark.thorough
def test_a_table_shows_the_main_metrics_of_its_tasks(
    told: list[object], tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_map(kind: Kind, name: str) -> EvalTask:
        task = any_revision(kind, name)
        return replace(task, main_metric="MAP") if name == "cranfield" else task

    monkeypatch.setattr("search_table.find_task", by_map)
    script("search_table", *told)
    shown = (tmp_path / "out" / "table.md").read_text()
    assert "\nnDCG@10 and MAP with the bootstrap" in shown
    record = json.loads((tmp_path / "out" / "dense" / "cranfield.json").read_text())
    assert f"| cranfield, MAP | {record['scores']['MAP']:.4f} [" in shown
    monkeypatch.setattr("search_table.find_task", any_revision)
    with pytest.raises(SystemExit, match=r"made with main metric MAP, not nDCG@10"):
        script("search_table", *told)


def test_new_vectors_are_written_after_an_error(
    told: list[object], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    closed: list[bool] = []
    monkeypatch.setattr("search_table.evaluate_retrieval", fails)
    monkeypatch.setattr("search_table.CachedEmbedder.close", lambda _: closed.append(True))
    with pytest.raises(OSError, match="the disk is full"):
        script("search_table", *told)
    assert len(closed) == 1
