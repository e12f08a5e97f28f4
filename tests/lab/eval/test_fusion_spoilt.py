from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.building.model_check import unrelated_cosine
from tests.eval.conftest import Script, any_revision, assert_no_paths


@pytest.mark.thorough
def test_hybrid_search_is_compared_with_the_model_and_with_the_spoilt_model(
    data: Path, model: Path, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("fusion_spoilt")
    monkeypatch.setattr(module, "find_task", any_revision)
    out, line = tmp_path / "out", ["--data", data, "--model", model, "--work", tmp_path / "work"]
    line += ["--out", out, "--collections", "scifact", "cranfield"]
    with pytest.raises(SystemExit) as ended:
        script("fusion_spoilt", *line)
    report = json.loads((out / "spoilt.json").read_text())
    assert report["collections"].keys() == {"scifact", "cranfield"}
    for row in report["collections"].values():
        assert row["difference"] == pytest.approx(row["spoilt"] - row["unspoilt"])
        assert row["low"] <= row["difference"] <= row["high"]
        assert row["lowest_cosine"] > 0.7
        assert row["queries"] == 10
    assert ended.value.code == any(not check["holds"] for check in report["checked"])
    assert {"commit", "machine", "command"} <= report.keys()
    assert report["command"] in (out / "spoilt.md").read_text()
    assert_no_paths(out / "spoilt.json", data, model, tmp_path)

    monkeypatch.setattr(module, "evaluate_retrieval", None)  # nothing is measured again
    shown = (out / "spoilt.md").read_text()
    with pytest.raises(SystemExit):
        script("fusion_spoilt", *line)
    assert (out / "spoilt.md").read_text() == shown


def test_the_spoilt_model_adds_the_same_direction_to_all_vectors() -> None:
    module = importlib.import_module("fusion_spoilt")
    embedder = HashingEmbedder()
    spoilt = module.spoilt(embedder)
    texts = ["a dog runs", "the sea is deep", "an old engine"]
    before, after = embedder.encode_document(texts), spoilt.encode_query(texts)
    # If a * after - before = direction, whose norm is known, this is a.
    cosines = (before * after).sum(axis=1)
    norms = cosines + np.sqrt(cosines**2 + module.LENGTH**2 - 1)
    directions = norms[:, None] * after - before
    np.testing.assert_allclose(directions, directions[:1].repeat(3, axis=0), atol=1e-5)
    assert unrelated_cosine(embedder) < 0.2
    assert unrelated_cosine(spoilt) > module.LOWEST


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        ({}, []),
        ({"spoilt": 0.488}, ["largest loss of a collection, at most"]),
        ({"lowest_cosine": 0.69}, ["lowest cosine, at least"]),
    ],
)
def test_a_loss_or_a_low_cosine_beyond_its_limit_is_named(
    change: dict[str, float], failing: list[str]
) -> None:
    module = importlib.import_module("fusion_spoilt")
    row = {"unspoilt": 0.5, "spoilt": 0.495, "lowest_cosine": 0.75}
    checks = module.checked({"scifact": row, "npl": row | change})
    assert [check["figure"] for check in checks if not check["holds"]] == failing
