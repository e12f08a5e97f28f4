"""Labelled texts from every table format, and the messages about bad rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbert_search.errors import CorpusError
from sbert_search.text.labelled.records import Label, LabelledText
from sbert_search.text.labelled.texts import (
    LabelKind,
    class_indices,
    classes_of,
    read_labelled_texts,
)


def written(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_single_texts_and_integer_classes(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.jsonl", {"sentence": "good", "label": 1}, {"sentence": "bad", "label": 0}
    )
    rows = read_labelled_texts(path)
    assert [(row.text, row.text2, row.label) for row in rows] == [
        *(("good", None, "1"), ("bad", None, "0"))
    ]
    assert rows[1].source == f"{path}:2"
    assert classes_of(rows) == ("0", "1")


def test_pairs_from_csv_and_parquet(tmp_path: Path) -> None:
    csv, parquet = tmp_path / "p.csv", tmp_path / "p.parquet"
    csv.write_text("premise,hypothesis,gold\na,b,yes\n")
    columns = {"premise": ["a"], "hypothesis": ["b"], "gold": ["yes"]}
    pq.write_table(pa.table(columns), parquet)
    for path in (csv, parquet):
        (row,) = read_labelled_texts(path, label="gold", labels=["yes", "no"])
        assert (row.text, row.text2, row.label) == ("a", "b", "yes")


def test_a_column_that_is_named_is_not_found_for_another_part(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", {"text": "t", "answer": "a", "score": "x", "label": "y"})
    (row,) = read_labelled_texts(path, text="answer", label="score")
    assert (row.text, row.text2, row.label) == ("a", None, "x")


@pytest.mark.parametrize(
    ("kind", "value", "label"),
    [
        ("several", ["b", "a", "b", 3], ("b", "a", "3")),
        ("several", [], ()),
        ("several", "a | b", ("a", "b")),
        ("several", None, ()),
        ("several", '["a", "b"]', ("a", "b")),
        ("number", "2.5", 2.5),
        ("number", 3, 3.0),
        ("class", " a ", "a"),
    ],
)
def test_kinds_of_labels(tmp_path: Path, kind: LabelKind, value: object, label: Label) -> None:
    path = written(tmp_path / "a.jsonl", {"text": "t", "label": value})
    assert read_labelled_texts(path, kind=kind)[0].label == label


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("class", "positve", "a.jsonl:2: Unknown class in 'label' 'positve'; did you mean 'posit"),
        ("class", None, "a.jsonl:2: 'label' must be the name of a class, a string or an integer"),
        ("class", 0.5, "a string or an integer (0.5). Fix it."),
        ("class", True, "a string or an integer (True)"),
        ("several", ["positive", 7], "a.jsonl:2: Unknown class in 'label' '7'; known: negative, p"),
        ("several", "[positive", "a.jsonl:2: 'label' must be a JSON list of classes, or classes"),
        ("several", "[" * 200_000, "a.jsonl:2: 'label' must be a JSON list of classes, or"),
        ("several", 1, "a.jsonl:2: 'label' must be a list of classes (1)"),
        ("number", "high", "a.jsonl:2: 'label' must be a finite number ('high')"),
        ("number", "1_0", "a.jsonl:2: 'label' must be a finite number ('1_0')"),
        ("number", "nan", "a.jsonl:2: 'label' must be a finite number ('nan')"),
    ],
)
def test_bad_labels(tmp_path: Path, kind: LabelKind, value: object, message: str) -> None:
    first: object = {"class": "positive", "several": ["positive"], "number": 1}[kind]
    rows = ({"text": "t", "label": first}, {"text": "t", "label": value})
    path = written(tmp_path / "a.jsonl", *rows)
    with pytest.raises(CorpusError) as error:
        read_labelled_texts(path, kind=kind, labels=["positive", "negative"])
    assert message in str(error.value)


def test_files_without_columns_or_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", {"body": "t", "label": 1})
    with pytest.raises(
        CorpusError, match=r"no text column among body, label\. Rename a column"
    ) as error:
        read_labelled_texts(path)
    where = "[columns] text1 = NAME in a task file, data.columns.text=NAME in a training."
    assert str(error.value).endswith(where)
    with pytest.raises(CorpusError, match="'sentence' must be a text that is not blank"):
        read_labelled_texts(written(path, {"sentence": " ", "label": 1}))
    with pytest.raises(CorpusError, match=r"a\.jsonl: holds no labelled texts"):
        read_labelled_texts(written(path))


def test_integers_are_sorted_by_value_and_before_names(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": "t", "label": [label]} for label in ("b", 10, 9, "a")]
    found = read_labelled_texts(written(tmp_path / "a.jsonl", *rows), kind="several")
    assert classes_of(found) == ("9", "10", "a", "b")
    rows = [{"text": "t", "label": label} for label in ("1", "001", "01", "9" * 5000)]
    found = read_labelled_texts(written(tmp_path / "a.jsonl", *rows))
    assert classes_of(found) == ("001", "01", "1", "9" * 5000)


def test_a_second_text_in_a_late_row_is_refused(tmp_path: Path) -> None:
    row: dict[str, object] = {"text": "t", "label": "a"}
    rows = [row] * 120 + [{**row, "text2": "u"}]
    path = written(tmp_path / "a.jsonl", *rows)
    with pytest.raises(CorpusError, match=r"a\.jsonl:121: 'text2' is a second text"):
        read_labelled_texts(path)


def test_a_class_has_its_own_name_before_that_of_a_number() -> None:
    rows = [LabelledText("a", None, name, "f:1") for name in ("1", "LABEL_1", "0")]
    assert class_indices(rows[:2], ["1", "LABEL_1"]) == [[0], [1]]
    assert class_indices(rows, ["LABEL_0", "LABEL_1"]) == [[1], [1], [0]]
