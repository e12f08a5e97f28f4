"""Every script of ``examples/`` runs, is short and prints what its story says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import ROOT, environment

PRINTED = {
    "chain": ["$ sbert-search tokenizer train", "model        ", " 1  ", " 3  "],
    "csv_hybrid": ["The tides of the north sea (1931)", "filter: year >= 1980", "Sourdough (2014)"],
    "notes_in_sync": [
        "added ('kitchen/dough.md',) replaced ('sea/tides.md',) deleted ('sea/dunes.txt',)",
        "unchanged 4",
        "kitchen/bread.html | Bread",
    ],
    "own_bi_encoder": ["before: ", "after:  "],
    "own_reranker": ["bi-encoder alone:  ", "with the reranker: "],
    "rows_in_memory": ["duplicate=", "search  gzip", "similar ", "deleted 1 False", "nearest y"],
}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    script = ROOT / "examples" / f"{name}.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 40
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for text in PRINTED[name]:
        assert text in done.stdout
    if name.startswith("own_"):  # what is trained finds more than before, on texts it has not seen
        before, after = (int(n) for n in re.findall(r"(\d+) of \d+", done.stdout))
        assert after > before
    assert list(tmp_path.iterdir()) == []
