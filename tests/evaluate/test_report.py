from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError
from sbert_search.evaluate.report import refuse_overwriting, report_folders, write_reports
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.tasks import EvalTask


def test_reports_need_a_folder_without_their_inputs(tmp_path: Path) -> None:
    task = EvalTask(name="one", kind="sts", path=Path("one.jsonl"), split="test")
    source = tmp_path / "one.json"
    source.write_text("{}")
    with pytest.raises(ConfigError, match=r"one\.json is a file; name a folder for the reports"):
        refuse_overwriting([task], source, [])
    with pytest.raises(ConfigError, match=r"one\.json"):
        refuse_overwriting([task], tmp_path, [source])
    refuse_overwriting([task], tmp_path / "new", [source])


def test_two_systems_get_two_folders(tmp_path: Path) -> None:
    assert list(report_folders(tmp_path, {"a b": [], "c": []})) == [
        tmp_path / "a-b",
        tmp_path / "c",
    ]
    with pytest.raises(ConfigError, match=r"Two systems would be written to .*; rename 'a-b'"):
        report_folders(tmp_path, {"a b": [], "a-b": []})


def test_an_id_that_no_run_file_can_hold_costs_the_run_file_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mini"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "d 1", "text": "tea"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "tea"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td 1\t1\n")
    task = EvalTask(name="mini", kind="retrieval", path=Path("mini"))
    evaluation = evaluate_retrieval(task, HashingEmbedder(), data=tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "mini.trec").write_text("q Q0 old 1 1.0 us\n")
    written = [path.name for path in write_reports([evaluation], out)]
    assert written == ["retrieval.md", "mini.json", "mini.svg"]
    assert not (out / "mini.trec").exists()
    shown = " ".join(capsys.readouterr().err.split())
    assert "mini.trec is not written. The document id 'd 1' is empty or has white space" in shown
