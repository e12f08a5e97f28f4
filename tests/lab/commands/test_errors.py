from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbert_search.cli.main import run as command
from tests.lab.errors.test_analyze import data, run

__all__ = ["data", "run"]  # fixtures


def test_tables_and_files(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "errors"
    assert command(["analyze", "errors", str(run), "--data", str(data), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "hashing on mini: 2 queries, mean nDCG@10" in printed.out
    assert "hashing on pairs: 3 pairs, mean rank error" in printed.out
    for task in ("mini", "pairs"):
        for ending in ("json", "svg", "html"):
            assert f"wrote {out / f'errors-{task}.{ending}'}" in printed.err


def test_json_lines(run: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["analyze", "errors", str(run / "mini.json"), "--data", str(data), "--worst", "1"]
    assert command([*arguments, "--json", "--quiet"]) == 0
    figures, item = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert figures["metric"] == "nDCG@10"
    assert "worst" not in figures
    assert item["item"] == "q2"


def test_the_folder_of_the_run_is_refused(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["analyze", "errors", str(run), "--data", str(data), "--out", str(run)]) == 2
    assert "name another folder" in capsys.readouterr().err
