"""Predictions for the rows of files: columns, bad rows, outputs and what they leave behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.heads import predicted as files
from sbert_search.heads.predicted import FilePredictor
from sbert_search.heads.predictor import Predictor
from sbert_search.text.labelled.texts import read_labelled_texts
from tests.models.tiny import tiny_answerer, tiny_classifier, tiny_tagger

pytestmark = pytest.mark.usefixtures("one_thread")


def written(path: Path, *rows: Mapping[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_single_texts_pairs_and_questions_are_found_by_their_columns(tmp_path: Path) -> None:
    texts = written(tmp_path / "t.jsonl", {"id": 7, "text": "cat"}, {"text": "dog", "n": 1})
    pairs = written(tmp_path / "p.jsonl", {"sentence1": "cat", "sentence2": "dog"})
    asked = written(tmp_path / "q.jsonl", {"question": "cat", "context": "the cat sat"})
    model = Predictor(tiny_classifier(tmp_path))
    rows = list(FilePredictor(model).rows(texts))
    assert [row.to_row() for row in rows] == [
        {"row": 1, "id": "7", **model.classify(["cat", "dog"])[0].to_row()},
        {"row": 2, **model.classify(["cat", "dog"])[1].to_row()},
    ]
    (pair,) = FilePredictor(model).rows(pairs)
    assert pair.prediction == model.classify([("cat", "dog")])[0]
    (swapped,) = FilePredictor(model, "sentence2", "sentence1").rows(pairs)
    assert swapped.prediction == model.classify([("dog", "cat")])[0]
    questions = Predictor(tiny_answerer(tmp_path))
    (answer,) = FilePredictor(questions).rows(asked)
    assert answer.prediction == questions.answer([("cat", "the cat sat")])[0]
    with pytest.raises(
        CorpusError, match=r"no column context or text or passage among .* with text2=NAME"
    ):
        list(FilePredictor(questions, text="text").rows(texts))


def test_the_columns_are_those_of_training(tmp_path: Path) -> None:
    both = written(tmp_path / "b.jsonl", {"sentence": "dog", "text": "cat", "label": "no"})
    model = Predictor(tiny_classifier(tmp_path))
    (row,) = FilePredictor(model).rows(both)
    assert row.text == read_labelled_texts(both)[0].text == "cat"
    asked = written(tmp_path / "a.jsonl", {"question": "cat", "answer": "dog", "label": "no"})
    (row,) = FilePredictor(model, text="answer").rows(asked)
    assert row.prediction == model.classify(["dog"])[0]


def test_pairs_that_were_not_asked_for_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faq = written(
        tmp_path / "faq.jsonl", {"text": "cat", "answer": "dog"}, {"text": "a", "answer": "b"}
    )
    model = Predictor(tiny_classifier(tmp_path))
    list(FilePredictor(model).rows(faq))
    said = capsys.readouterr().err
    assert said.count("each row is a pair of texts, of the columns text and answer") == 1
    list(FilePredictor(model, text2="answer").rows(faq))
    list(FilePredictor(Predictor(tiny_tagger(tmp_path))).rows(faq))
    assert "pair" not in capsys.readouterr().err


def test_a_second_text_for_a_tagger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tags single texts; .* second text\."):
        FilePredictor(Predictor(tiny_tagger(tmp_path)), text2="answer")


def test_another_answer_to_bad_rows_is_refused(tmp_path: Path) -> None:
    unknown: Any = "Stop"
    with pytest.raises(ConfigError, match="on_error is 'Stop'; use 'stop' or 'skip'"):
        FilePredictor(Predictor(tiny_classifier(tmp_path)), on_error=unknown)


def test_json_and_parquet_hold_the_same_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_ROWS", 2)  # several batches, and several row groups
    rows = [
        {"question": f"the {w}", "context": f"a {w} sat on the mat"} for w in ["cat", "dog", "sun"]
    ]
    source = written(tmp_path / "q.jsonl", *({"text": r["context"], **r} for r in rows * 6))
    for model in (tiny_classifier(tmp_path), tiny_tagger(tmp_path), tiny_answerer(tmp_path)):
        predictor = FilePredictor(Predictor(model))
        out = tmp_path / "out.jsonl", tmp_path / "out.parquet"
        assert [predictor.write(source, path, all_scores=True) for path in out] == [18, 18]
        table = pq.read_table(out[1])
        assert pq.ParquetFile(out[1]).num_row_groups == 2
        for own, other in zip(read(out[0]), table.to_pylist(), strict=True):
            if "scores" in other:
                other["scores"] = dict(other["scores"])
                own["labels"] = [own["label"]]
            assert {name: value for name, value in other.items() if name in own} == own


def test_bad_rows_stop_the_work_or_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path / "t.jsonl", {"text": "cat"}, {"text": " "}, {"text": "dog"})
    out, model = tmp_path / "out.jsonl", Predictor(tiny_classifier(tmp_path))
    out.write_text("old\n")
    with pytest.raises(CorpusError, match=r"t\.jsonl:2: 'text' must be a text that is not blank"):
        FilePredictor(model).write(source, out)
    assert out.read_text() == "old\n"
    assert not list(tmp_path.glob("*.tmp"))
    predictor = FilePredictor(model, on_error="skip")
    assert predictor.write(source, out) == 2
    assert predictor.rejected == 1
    assert [row["row"] for row in read(out)] == [1, 3]
    assert "Left out: " in capsys.readouterr().err
    rejects = tmp_path / "out.jsonl.rejects.jsonl"
    reason = "'text' must be a text that is not blank"
    assert read(rejects) == [{"source": f"{source}:2", "reason": reason, "value": "' '"}]
    good = written(tmp_path / "g.jsonl", {"text": "cat"})
    assert FilePredictor(model, on_error="skip").write(good, out) == 1
    assert not rejects.exists()
    assert not list(tmp_path.glob("*.partial"))


def test_outputs_that_would_destroy_something_are_refused(tmp_path: Path) -> None:
    source = written(tmp_path / "t.jsonl", {"text": "cat"})
    predictor = FilePredictor(Predictor(tiny_classifier(tmp_path)))
    with pytest.raises(ConfigError, match=r"written as \.jsonl or \.parquet"):
        predictor.write(source, tmp_path / "out.csv")
    with pytest.raises(ConfigError, match=r"t\.jsonl"):
        predictor.write(source, source)
    with pytest.raises(CorpusError, match=r"e\.jsonl: holds no rows"):
        list(predictor.rows(written(tmp_path / "e.jsonl")))
