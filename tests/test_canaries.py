"""No file can run code: every one that tries is refused by name, or opened without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import ROOT, environment
from tests.faults import keep_result

OPENED = {  # harmless without their code: what brings it along is not looked at
    "remote code, native",
    "remote code, sentence-transformers",
    "corpus c.parquet",
    "corpus c.arrow",
    "index ann",
}


@pytest.mark.thorough
def test_files_never_run_code(tmp_path: Path) -> None:
    child = [sys.executable, "-m", "tests.canary", str(tmp_path)]
    done = subprocess.run(child, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["seen"] == []
    assert not told["mark"]
    ended = told["doors"]
    assert {name for name, end in ended.items() if end.startswith("opened")} <= OPENED, ended
    assert "Searching without ann/000007.faiss" in ended["index ann"]
    for engine in ("native", "sentence-transformers"):
        assert "pickle" in ended[f"pickled weights, {engine}"]
        assert "evil.Module" in ended[f"own module, {engine}"]
    refused = sum(end.startswith("refused") for end in ended.values())
    keep_result(
        "files_run_no_code",
        {
            "ways_in": len(ended),
            "refused_by_name": refused,
            "opened_without_their_code": len(ended) - refused,
            "ran": 0,
        },
    )
