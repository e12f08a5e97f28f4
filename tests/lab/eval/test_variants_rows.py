from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sbert_search.errors import ConfigError
from tests.eval.conftest import Script
from tests.lab.variants.tiny import write_comparison


def test_a_folder_with_results_of_another_recipe_is_refused(script: Script, tmp_path: Path) -> None:
    recipe, work = write_comparison(tmp_path / "data"), tmp_path / "work"
    (work / "rows").mkdir(parents=True)
    (work / "recipe.toml").write_text("tokens = 1200\n")
    line = (recipe, "--data", tmp_path / "data", "--work", work, "--report", tmp_path / "report")
    with pytest.raises(ConfigError, match="results of another recipe"):
        script("variants_rows", *line, "--seeds", 1)
    assert not (tmp_path / "report").exists()


@pytest.mark.thorough
def test_kept_results_need_no_trainings(script: Script, tmp_path: Path) -> None:
    families = ("bert", "distilbert", "electra")
    recipe = write_comparison(tmp_path / "data", families=families)
    work, report = tmp_path / "work", tmp_path / "report"
    line = (recipe, "--data", tmp_path / "data", "--work", work, "--report", report)
    script("variants_rows", *line, "--seeds", 1)
    first = json.loads((report / "rows.json").read_text())
    names = set(first["figures"])
    assert {"nsp head on sop examples, accuracy", "sop head on sop examples, accuracy"} <= names
    assert {"distilled, no soft: held-out MLM loss", "distilled, all terms: held-out MLM loss"} <= (
        names
    )
    assert len([name for name in names if name.startswith("electra, masked: ")]) == 1
    assert len([name for name in names if name.startswith("bert: ")]) == 3  # [CLS], mean, static
    assert len(first["generated"]) == 3  # a text for each beginning
    trained = {each.name for each in (work / "runs").iterdir() if each.is_dir()}
    assert len(trained) == 8  # two heads, four students, two ELECTRAs
    shutil.rmtree(work)
    script("variants_rows", *line, "--seeds", 1)
    again = json.loads((report / "rows.json").read_text())
    assert again["figures"] == first["figures"]
    assert not (work / "runs").exists()
