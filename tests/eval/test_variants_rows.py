from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.errors import ConfigError
from tests.analysis.variants.tiny import write_comparison
from tests.eval.conftest import Script


def test_a_folder_with_results_of_another_recipe_is_refused(script: Script, tmp_path: Path) -> None:
    recipe, work = write_comparison(tmp_path / "data"), tmp_path / "work"
    (work / "rows").mkdir(parents=True)
    (work / "recipe.toml").write_text("tokens = 1200\n")
    line = (recipe, "--data", tmp_path / "data", "--work", work, "--report", tmp_path / "report")
    with pytest.raises(ConfigError, match="results of another recipe"):
        script("variants_rows", *line, "--seeds", 1)
    assert not (tmp_path / "report").exists()
