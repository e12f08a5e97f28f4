"""The command `predict`, from a saved model to lines, JSON and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbert_search.heads.commands import line_of
from sbert_search.heads.predicted import PredictedRow
from sbert_search.heads.results import TextAnswer, TextEntities, TextEntity
from sbert_search.index.index import Index
from tests.cli.process import sbert_search
from tests.models.tiny import tiny_answerer, tiny_classifier, tiny_tagger

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_classifier(tmp_path / "tokens").save(tmp_path / "model")
    return tmp_path / "model"


def test_lines_json_and_files_tell_the_same(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text("id,body\na,the cat\nb,the dog\n")
    fields = ("--text-field", "body", "--device", "cpu")
    found = sbert_search("predict", model, source, *fields, "--json")
    assert found.code == 0, found.err
    first, second = found.records
    assert (first["row"], first["id"], second["id"]) == (2, "a", "b")
    assert set(first) == {"row", "id", "label", "score"}
    shown = sbert_search("predict", model, source, *fields).out.splitlines()
    assert shown[0] == f"{first['label']}  {first['score']:.4f}  the cat"
    every = sbert_search("predict", model, source, *fields, "--all-scores")
    assert every.out.count(" yes ") + every.out.count("  yes") >= 1
    out = tmp_path / "out.jsonl"
    told = sbert_search("predict", model, source, *fields, "--out", out, "--json").records
    assert told == [{"out": str(out), "rows": 2, "rejected": 0}]
    assert [json.loads(line) for line in out.read_text().splitlines()] == [first, second]


def test_a_search_in_int8_reads_hits_with_a_head_that_has_no_int8(tmp_path: Path) -> None:
    tiny_answerer(tmp_path / "tokens").save(tmp_path / "qa")
    Index.from_texts(["the cat sat"], model="hashing", out=tmp_path / "my.index")
    line = ("search", tmp_path / "my.index", "the cat", "--mode", "lexical", "--device", "cpu")
    for precision in ("int8", "fastest"):
        done = sbert_search(*line, "--answer", tmp_path / "qa", "--precision", precision, "--json")
        assert done.code == 0, done.err
        assert [hit["text"] for hit in done.records] == ["the cat sat"]
    refused = sbert_search("predict", tmp_path / "qa", "-", "--precision", "int8")
    assert refused.code == 2
    assert "'int8' is not one of 'auto', 'fp32', 'bf16', 'fp16'" in refused.err


def test_rows_from_standard_input(model: Path) -> None:
    rows = '{"text": "the cat"}\n{"text": "the dog"}\n'
    done = sbert_search("predict", model, "-", "--device", "cpu", "--json", stdin=rows)
    assert done.code == 0, done.err
    assert [row["row"] for row in done.records] == [1, 2]


def test_bad_rows_models_and_inputs(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "t.jsonl"
    source.write_text('{"text": "cat"}\n{"text": ""}\n')
    done = sbert_search("predict", model, source, "--device", "cpu")
    assert done.code == 1
    assert "t.jsonl:2: 'text' must be a text that is not blank" in done.err
    assert "or pass --on-error skip to leave bad rows out." in done.err
    skipped = sbert_search("predict", model, source, "--on-error", "skip", "--json")
    assert (skipped.code, len(skipped.records)) == (3, 1)
    assert "1 rows were left out." in skipped.err
    out = tmp_path / "out.jsonl"
    to_file = sbert_search("predict", model, source, "--on-error", "skip", "--out", out)
    assert to_file.code == 3
    assert f"1 rows were left out; {out}.rejects.jsonl says why." in to_file.err
    assert (tmp_path / "out.jsonl.rejects.jsonl").read_text().count("\n") == 1
    missing = sbert_search("predict", tmp_path / "tokens", source)
    assert missing.code == 1
    assert "Traceback" not in missing.err


def test_options_of_another_task_are_refused(model: Path, tmp_path: Path) -> None:
    tiny_tagger(tmp_path / "tokens").save(tmp_path / "tag")
    source = tmp_path / "t.jsonl"
    source.write_text('{"text": "cat"}\n')
    done = sbert_search("predict", model, source, "--no-answer-threshold", "1")
    assert (done.code, done.out) == (2, "")
    assert "--no-answer-threshold is for models that answer questions" in done.err
    done = sbert_search("predict", tmp_path / "tag", source, "--all-scores")
    assert (done.code, done.out) == (2, "")
    assert "--all-scores is for classifiers" in done.err


def test_entities_and_answers_are_shown_with_their_texts(tmp_path: Path) -> None:
    tiny_tagger(tmp_path / "tokens").save(tmp_path / "tag")
    tiny_answerer(tmp_path / "tokens").save(tmp_path / "qa")
    source = tmp_path / "q.jsonl"
    source.write_text('{"text": "the cat sat", "question": "the dog"}\n')
    (tags,) = sbert_search("predict", tmp_path / "tag", source, "--json").records
    assert all("the cat sat"[e["start"] : e["end"]] == e["text"] for e in tags["entities"])
    sure = ("--no-answer-threshold", "1000")
    (answer,) = sbert_search("predict", tmp_path / "qa", source, *sure, "--json").records
    assert "the cat sat"[answer["start"] : answer["end"]] == answer["answer"] != ""
    shown = sbert_search("predict", tmp_path / "qa", source, *sure).out
    assert shown == f"{answer['answer']}  {answer['score']:.4f}  <- the dog\n"
    none = sbert_search("predict", tmp_path / "qa", source, "--no-answer-threshold", "-1000").out
    assert none.startswith("(no answer)  ")


def test_a_prediction_over_several_lines_is_shown_on_one() -> None:
    text = "Ada\r\nLovelace\nwrote"
    entities = TextEntities((TextEntity("per", 0, 13, "Ada\r\nLovelace", 0.5),))
    answer = TextAnswer("Ada\r\nLovelace", 0, 13, 0.25, 1.0)
    shown = [line_of(PredictedRow(1, None, text, found), False) for found in (entities, answer)]
    assert shown == [
        "Ada Lovelace (per 0.50)  <- Ada Lovelace wrote",
        "Ada Lovelace  0.2500  <- Ada Lovelace wrote",
    ]
