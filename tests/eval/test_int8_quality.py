"""`eval/int8_quality.py` on small data."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.eval.conftest import Script, any_revision, assert_no_paths
from tests.models.tiny import tiny_cross_encoder


@pytest.mark.slow
def test_int8_is_compared_once_and_checked(
    data: Path, model: Path, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = importlib.import_module("int8_quality")
    monkeypatch.setattr(module, "find_task", any_revision)
    work, out = tmp_path / "work", tmp_path / "report"
    told: tuple[object, ...] = ("--data", data, "--model", model, "--work", work, "--out", out)
    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "pairs")
    told = (*told, "--cross-encoder", tmp_path / "pairs", "--collections", "cranfield")
    monkeypatch.setattr(module, "LIMITS", dict.fromkeys(module.LIMITS, 100.0))
    with pytest.raises(SystemExit) as ended:
        script("int8_quality", *told)
    assert not ended.value.code
    report = json.loads((out / "report.json").read_text())
    assert_no_paths(out / "report.json", data, model, tmp_path)
    assert report["ndcg"]["cranfield"]["queries"] == 10
    assert report["cosines"]["cranfield, documents"]["texts"] == 40
    assert 0.9 < report["cosines"]["cranfield, documents"]["least"] < 1
    assert 0.9 < report["cross_encoder"]["spearman"] <= 1
    assert len(report["checked"]) == 5

    monkeypatch.setattr(module, "LIMITS", dict.fromkeys(module.LIMITS, -1.0))
    monkeypatch.setattr(module, "evaluate_retrieval", None)  # nothing is computed again
    monkeypatch.setattr(module, "Reranker", None)
    with pytest.raises(SystemExit) as ended:
        script("int8_quality", *told)
    assert ended.value.code
    assert "| **no** |" in (out / "README.md").read_text()
