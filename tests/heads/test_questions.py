"""Questions from SQuAD's JSON and from rows, and the messages about bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbert_search.errors import CorpusError
from sbert_search.heads.labelled_spans import read_questions
from sbert_search.text.labelled.records import Answer, Question

CONTEXT = "Oslo is the capital of Norway."
ASKED = {"id": "1", "question": " What is Oslo? ", "context": CONTEXT}


def written(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(
    "answers",
    [
        [["the capital", 8], ["capital", 12]],
        [{"text": "the capital", "answer_start": 8}, {"text": "capital", "answer_start": 12}],
        {"text": ["the capital", "capital"], "answer_start": [8, 12]},
    ],
)
def test_rows_with_answers_in_each_layout(tmp_path: Path, answers: object) -> None:
    path = written(tmp_path / "a.jsonl", ASKED | {"answers": answers, "title": "Oslo"})
    expected = (Answer(8, "the capital"), Answer(12, "capital"))
    assert read_questions(path) == [
        Question("1", "What is Oslo?", CONTEXT, expected, "Oslo", f"{path}:1")
    ]


def test_squad_json_with_and_without_answers(tmp_path: Path) -> None:
    questions: list[dict[str, object]] = [
        {"id": "1", "question": "Where?", "answers": [{"text": "Norway", "answer_start": 23}]},
        {"id": "2", "question": "When?", "answers": [], "is_impossible": True},
    ]
    article = {"title": "Oslo", "paragraphs": [{"context": CONTEXT, "qas": questions}]}
    path = written(tmp_path / "a.json", {"version": "v2.0", "data": [article, article | {}]})
    with pytest.raises(CorpusError, match=r"the id '1' occurs before, at .*paragraph 1:question 1"):
        read_questions(path)
    written(path, {"version": "v2.0", "data": [article]})
    first, second = read_questions(path)
    assert (first.answers, second.answers) == ((Answer(23, "Norway"),), ())
    assert second.source == f"{path}:item 1:paragraph 1:question 2"
    questions[0]["answers"] = [{"text": "Sweden", "answer_start": 23}]
    written(path, {"data": [article]})
    with pytest.raises(CorpusError, match="item 1: paragraph 1, question 1: the context has 'Norw"):
        read_questions(path)


def test_a_row_without_id_is_named_by_its_place(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", {**ASKED, "id": None, "answers": []})
    assert read_questions(path)[0].question_id == f"{path.name}:1"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([["Oslo", 27]], "the answer 'Oslo' from character 27 lies outside the context, which has"),
        ([["Oslo", -1]], "from character -1 lies outside the context"),
        ([["oslo", 0]], "the context has 'Oslo' at character 0, and the answer is 'oslo'"),
        ([["Oslo", "0"]], "answer_start must be an integer ('0')"),
        ([[" ", 4]], "the text of an answer is blank or no string (' ')"),
        (["Oslo"], "an answer must have a text and an answer_start ('Oslo')"),
        ({"text": ["Oslo"], "answer_start": []}, "'answers' has 1 texts and 0 starts"),
        (None, "no 'answers'; write [] if the context has no answer, or leave out the row. Fix"),
        ("Oslo", "'answers' must be a list ('Oslo')"),
    ],
)
def test_bad_answers(tmp_path: Path, answers: object, message: str) -> None:
    path = written(tmp_path / "a.jsonl", ASKED | {"answers": answers})
    with pytest.raises(CorpusError) as error:
        read_questions(path)
    assert str(error.value).startswith(f"{path}:1: ")
    assert message in str(error.value)


def test_a_file_without_questions(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n")
    with pytest.raises(CorpusError, match=r"a\.jsonl: holds no questions"):
        read_questions(path)
