"""`index tune` from the command line: a table, a picture, and evidence that `info` shows."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.cli.process import sbert_search


def test_tune_shows_what_it_measured_and_info_shows_why(index: Path, tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    dry = sbert_search("index", "tune", index, "--dry-run", "--svg", picture)
    assert dry.code == 0
    assert "A dry run: nothing was changed." in dry.out
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert "tuned" not in sbert_search("index", "info", index).out
    queries = tmp_path / "q.jsonl"
    lines = ['{"_id": "1", "text": "river"}', '{"_id": "2", "text": "dough"}']
    queries.write_text("\n".join(lines), encoding="utf-8")
    done = sbert_search("index", "tune", index, "--queries", queries, "-k", "2", "--json")
    (record,) = done.records
    assert record["tuning"]["verified"]["recall"] == 1.0
    assert record["tuning"]["queries"] == "queries of q.jsonl"
    shown = sbert_search("index", "info", index).out
    assert "exact scan: recall@2 1.000" in shown
    assert sbert_search("search", index, "river", "-k", "1").code == 0


def test_wrong_targets_are_refused(index: Path) -> None:
    done = sbert_search("index", "tune", index, "--recall", "1.5")
    assert done.code == 2
    assert "1.5 is not in the range 0<x<=1" in done.err
    done = sbert_search("index", "tune", index, "--memory", "1K")
    assert done.code == 2
    assert "Tuning takes about" in done.err
    done = sbert_search("index", "tune", index, "-k", "1000000000")
    assert done.code == 2
    assert "1000000000 is not in the range 1<=x<=1000" in done.err
    done = sbert_search("index", "tune", index, "--device", "cpu")
    assert done.code == 2
    assert "--device is for the model that embeds --queries" in done.err
