"""`eval/several_languages.py` on small data."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from sbert_search.text.labelled.retrieval import read_qrels, read_queries
from tests.eval.conftest import Script, any_revision, assert_no_paths, write


def collection(folder: Path, language: str) -> None:
    """Write two sentences and two questions, of which n is answered by sentence n."""
    rows = [{"_id": f"{language}-0-{n}", "title": "", "text": f"{language} text {n}"} for n in "ab"]
    write(folder / "corpus.jsonl.gz", rows)
    asked = [{"_id": f"{language}-q{n}", "text": f"{language} text {n}?"} for n in "ab"]
    write(folder / "queries.jsonl.gz", asked)
    (folder / "qrels").mkdir()
    judged = "".join(f"{language}-q{n}\t{language}-0-{n}\t1\n" for n in "ab")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)


def test_questions_get_the_answers_of_the_other_language_or_of_both(tmp_path: Path) -> None:
    module: Any = importlib.import_module("several_languages")
    for language in ("en", "de"):
        collection(tmp_path / language, language)
    to, both = tmp_path / "to", tmp_path / "both"
    module.write_across(tmp_path, to, "en", "de", both=False)
    assert read_qrels(to, "test") == {"en-qa": {"de-0-a": 1}, "en-qb": {"de-0-b": 1}}
    assert [query.query_id for query in read_queries(to)] == ["en-qa", "en-qb"]
    assert len((to / "corpus.jsonl").read_text().splitlines()) == 2
    module.write_across(tmp_path, both, "en", "de", both=True)
    answers = {n: {f"en-0-{n}": 1, f"de-0-{n}": 1} for n in "ab"}
    expected = {f"{language}-q{n}": answers[n] for language in ("en", "de") for n in "ab"}
    assert read_qrels(both, "test") == expected
    assert len((both / "corpus.jsonl").read_text().splitlines()) == 4


@pytest.mark.slow
def test_a_model_is_measured_once_and_compared_with_published_scores(
    data: Path, model: Path, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = importlib.import_module("several_languages")
    monkeypatch.setattr(module, "find_task", any_revision)
    monkeypatch.setattr(module, "STS", ("stsb",))
    work, out = tmp_path / "work", tmp_path / "out"
    monkeypatch.setattr(module, "PUBLISHED", {"tiny": (0.0,)})
    monkeypatch.setattr(module, "TOLERANCES", {"tiny": 200.0})
    told = ("--data", data, "--model", f"tiny={model}", "--sts-only", "tiny", "--work", work)
    with pytest.raises(SystemExit) as ended:
        script("several_languages", *told, "--out", out)
    assert not ended.value.code
    assert json.loads((out / "report.json").read_text())["models"]["tiny"]["sts"]["stsb"]["holds"]
    assert_no_paths(out / "report.json", data, model, tmp_path)
    monkeypatch.setattr(module, "TOLERANCES", {"tiny": -1.0})
    monkeypatch.setattr(module, "evaluate_sts", None)  # nothing is computed again
    with pytest.raises(SystemExit) as ended:
        script("several_languages", *told, "--out", out)
    assert ended.value.code == 1
