"""Answers in hits: their places, the hits that are read, and what the commands show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from sbert_search.errors import ConfigError, QueryError
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.search.hits import AnswerReader
from tests.cli.process import sbert_search

ROWS = [
    {"_id": "a", "title": "Oslo", "text": "Oslo is the capital of Norway."},
    {"_id": "b", "text": "Norway has the capital Oslo and many fjords."},
    {"_id": "c", "text": "Bergen lies in Norway. It is no capital at all."},
    {"_id": "d", "text": "A capital letter."},
    {"_id": "e", "title": "The capital Norway"},
]


@dataclass(frozen=True)
class Found:
    text: str
    start: int
    end: int
    score: float = 0.5


class Finder:
    """Answers every question with the word "capital", and notes what it reads."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def answer(self, questions: Sequence[tuple[str, str]]) -> list[Found]:
        self.asked += questions
        places = [text.find("capital") for _, text in questions]
        return [Found("" if at < 0 else "capital", max(at, 0), max(at, 0) + 7) for at in places]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    out = tmp_path_factory.mktemp("reading") / "my.index"
    return Index.build(ROWS, out=out, model="hashing")


def test_answers_have_characters_of_the_text_of_the_hit(index: Index) -> None:
    reader = Finder()
    hits = SearchEngine(index, reader=reader).search("capital of Norway", 5, answer_depth=4)
    assert len(hits) == 5
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    for hit in hits[:4]:
        if hit.doc_id == "e":  # a title alone is not read
            assert hit.answer is None
            continue
        assert hit.answer is not None
        assert hit.text[hit.answer.start : hit.answer.end] == hit.answer.text == "capital"
        assert hit.answer.score == 0.5
    assert hits[4].answer is None
    assert {question for question, _ in reader.asked} == {"capital of Norway"}
    assert set(dict(reader.asked).values()) <= {row.get("text") for row in ROWS}


def test_answers_in_the_best_passage_of_a_long_document(tmp_path: Path) -> None:
    filler = "Nothing is said here about that. " * 40
    rows = [{"_id": "a", "title": "T", "text": f"{filler}The capital is Oslo. {filler}"}]
    index = Index.build(
        rows, out=tmp_path / "i", model="hashing", on_truncate="chunk", chunk_tokens=32
    )
    engine = SearchEngine(index, reader=Finder())
    for full_text in (False, True):
        (hit,) = engine.search("Oslo capital", full_text=full_text)
        assert hit.answer is not None
        assert hit.text[hit.answer.start : hit.answer.end] == "capital"
        assert (len(hit.text) > 1000) == full_text


def test_searches_without_answers(index: Index) -> None:
    reader = Finder()
    engine = SearchEngine(index, reader=reader)
    assert all(hit.answer is None for hit in engine.search("capital", answer_depth=0))
    assert reader.asked == []
    assert all(hit.answer is None for hit in SearchEngine(index).search("capital"))
    with pytest.raises(QueryError, match="answer_depth is -1; it must be at least 0"):
        engine.search("capital", answer_depth=-1)
    with pytest.raises(ConfigError, match=r"it has no method answer. Pass Predictor\(MODEL\)"):
        SearchEngine(index, reader=cast(AnswerReader, object()))
    with pytest.raises(QueryError):
        engine.search(engine.embedder.encode_query("capital"))


def test_a_depth_without_a_model_is_refused(index: Index) -> None:
    refused = sbert_search("search", index.path, "--queries", "q", "--answer-depth", 2)
    assert (refused.code, "--answer-depth needs --answer" in refused.err) == (2, True)
