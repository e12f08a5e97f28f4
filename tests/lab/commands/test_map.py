from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbert_search.cli.main import run
from sbert_search.index.index import Index
from tests.lab.map.conftest import clustered, rows


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("map") / "my.index"
    Index.build(rows(30), out=path, vectors=clustered(30))
    return path


def test_the_command_writes_the_page_and_prints_the_clusters(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "map"
    arguments = ["analyze", "map", str(index), "--out", str(out), "--clusters", "3", "--parquet"]
    assert run([*arguments, "--duplicates", "0.9"]) == 0
    printed = capsys.readouterr()
    assert "mill" in printed.out
    assert "groups of near-duplicates" in printed.out
    for name in ("map.html", "map.json", "map.parquet"):
        assert (out / name).stat().st_size > 0
        assert f"wrote {out / name}" in printed.err


def test_json_prints_a_line_for_each_document(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", "map", str(index), "--out", str(tmp_path), "--json", "--quiet"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["doc_id"] for line in lines] == [f"d{i}" for i in range(30)]
    assert set(lines[0]) >= {"x", "y", "pca_x", "pca_y", "cluster", "cluster_name", "distance"}


def test_near_duplicates_that_were_not_looked_for_are_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Index.build(rows(12), out=tmp_path / "i", vectors=clustered(12), metric="euclidean")
    assert run(["analyze", "map", str(tmp_path / "i"), "--out", str(tmp_path / "m")]) == 0
    printed = capsys.readouterr()
    assert "near-duplicates" not in printed.out
    assert "No near-duplicates are searched" in printed.err
    assert json.loads((tmp_path / "m" / "map.json").read_text())["duplicates_from"] is None


def test_wrong_input_is_told_before_work(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", "map", str(tmp_path / "none"), "--out", str(tmp_path / "m")]) == 1
    assert f"{tmp_path / 'none'}" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert run(["analyze", "map", str(index), "--out", str(tmp_path / "file")]) == 2
    assert "--out" in capsys.readouterr().err
    assert run(["analyze", "map", str(index), "--out", str(index / "seg")]) == 2
    assert run(["analyze", "map", str(index), "--out", str(tmp_path), "--points", "2"]) == 2
