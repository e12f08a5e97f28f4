"""Every script and notebook of ``examples/`` runs, is short and gives what its story says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chain.test_story import with_client
from tests.cli.process import ROOT

PRINTED = {
    "chain": ["$ sbert-search tokenizer train", "model        ", " 1  ", " 3  "],
    "csv_hybrid": ["The tides of the north sea (1931)", "filter: year >= 1980", "Sourdough (2014)"],
    "notes_in_sync": [
        "added ('kitchen/dough.md',) replaced ('sea/tides.md',) deleted ('sea/dunes.txt',)",
        "unchanged 4",
        "kitchen/bread.html | Bread",
    ],
    "own_bi_encoder": ["nDCG@10 before 0.", " held-out queries)", "nDCG@10: 0."],
    "own_reranker": ["bi-encoder alone:  ", "with the reranker: "],
    "support": [
        "nDCG@10 before 0.5",
        " held-out queries) nDCG@10 0.9",
        "recall@100 1.000",
        "\n[0.5",
    ],
    "rows_in_memory": ["duplicate=", "search  gzip", "similar ", "deleted 1 False", "nearest y"],
}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(PRINTED)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    script = ROOT / "examples" / f"{name}.py"
    most = 25 if name == "support" else 40
    assert len(script.read_text(encoding="utf-8").splitlines()) <= most
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=with_client(), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    for text in PRINTED[name]:
        assert text in done.stdout
    if name.startswith(("own_", "support")):  # the model finds more than before, unseen
        figures = re.findall(r"(\d+) of \d+|(?:before|after) ([\d.]+)", done.stdout)
        before, after = (float(count or share) for count, share in figures)
        assert after > before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_the_notebooks_run_and_hold_no_outputs(tmp_path: Path) -> None:
    """Each cell is displayed as in a notebook: as HTML if its last value has it."""
    notebooks = sorted((ROOT / "examples").rglob("*.ipynb"))
    assert [path.name for path in notebooks] == ["search_notes.ipynb", "support.ipynb"]
    shutil.copy(ROOT / "examples" / "support.csv", tmp_path)
    for path in notebooks:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
        parts = []
        for cell in code:
            *before, last = "".join(cell["source"]).split("\n")
            parts += [
                *before,
                f"shown = {last}",
                "print(getattr(shown, '_repr_html_', str)()[:60])",
            ]
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(parts)],
            cwd=tmp_path,
            env=with_client(),
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) >= len(code)
        assert "<table" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["support.csv"]
