from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbert_search.cli.main import run
from sbert_search.lab.variants.recipe import Piece, Pieces
from tests.lab.variants.tiny import write_comparison


def line(tmp_path: Path, *more: str) -> list[str]:
    recipe = write_comparison(tmp_path / "data")
    return [
        *("analyze", "variants", str(recipe), "--data", str(tmp_path / "data")),
        *("--out", str(tmp_path / "out"), "--seeds", "1", *more),
    ]


def test_the_plan_is_printed_and_nothing_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line(tmp_path, "--plan", "--quiet")) == 0
    told = capsys.readouterr()
    assert "bert-0-pretrain: about" in told.out
    assert "18 of 18 pieces are left; they take about" in told.out
    assert told.err == ""
    assert not (tmp_path / "out").exists()


def test_the_plan_as_json_has_a_line_for_each_piece(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = line(tmp_path, "--plan", "--json")
    done = Pieces(tmp_path / "out" / "work" / "pieces")
    done.keep(Piece("pretrain", "bert", 0), {"seconds": 1.0, "figures": {}, "readings": []})
    assert run(arguments) == 0
    first, *others = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"piece": "bert-0-pretrain", "seconds": None}
    assert len(others) == 17
    assert all(each["seconds"] > 0 for each in others)


def test_a_time_limit_leaves_pieces_for_the_next_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line(tmp_path, "--minutes", "0")) == 0
    told = capsys.readouterr()
    assert "At equal tokens" in told.out
    assert "18 pieces are not finished; repeat the command to go on." in told.err
    assert (tmp_path / "out" / "variants.md").exists()
