"""The example of MTEB scores an index."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.example import printed_by


def test_the_example_prints_a_score_for_each_mode(tmp_path: Path) -> None:
    printed = printed_by("mteb_folder", tmp_path)
    assert [line.split()[:2] for line in printed.splitlines()] == [
        ["dense", "nDCG@10"],
        ["lexical", "nDCG@10"],
        ["hybrid", "nDCG@10"],
    ]
    assert "dense nDCG@10 1.000" in printed
