"""Answers of a model in the hits that the command shows."""

from __future__ import annotations

from pathlib import Path

from sbert_search.index.index import Index
from tests.cli.process import sbert_search
from tests.models.tiny import tiny_answerer
from tests.search.test_reading import ROWS


def test_the_command_marks_answers(tmp_path: Path) -> None:
    index = Index.build(ROWS, out=tmp_path / "my.index", model="hashing")
    tiny_answerer(tmp_path / "tokens").save(tmp_path / "qa")
    asked = ("search", index.path, "the capital", "--answer", tmp_path / "qa", "--answer-depth", 2)
    found = sbert_search(*asked, "--json")
    assert found.code == 0, found.err
    answered = [hit for hit in found.records if "answer" in hit]
    assert len(answered) <= 2
    for hit in answered:
        answer = hit["answer"]
        assert hit["text"][answer["start"] : answer["end"]] == answer["text"]
    shown = sbert_search(*asked).out
    assert shown.count("answer: ") == len(answered)
