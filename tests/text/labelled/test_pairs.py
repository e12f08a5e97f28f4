"""Scored and labelled pairs from every table format."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbert_search.errors import CorpusError
from sbert_search.text.labelled.pairs import dissimilar_first, read_pairs
from sbert_search.text.labelled.records import TextPair

ROW = '{"sentence1": "a", "sentence2": "b", "score": %s}\n'


def parts(pairs: list[TextPair]) -> list[tuple[str, str, float | None, str | None]]:
    return [(pair.text1, pair.text2, pair.score, pair.label) for pair in pairs]


def test_the_same_pairs_from_every_format(tmp_path: Path) -> None:
    expected = [("a", "b", 2.5, None), ("c", "d", 3.0, None)]
    jsonl, tsv, parquet = (tmp_path / f"p.{name}" for name in ("jsonl.gz", "tsv", "parquet"))
    with gzip.open(jsonl, "wt") as file:
        file.write(ROW % 2.5 + ROW.replace('"a"', '"c"').replace('"b"', '"d"') % 3)
    tsv.write_text("sentence1\tsentence2\tscore\na\tb\t2.5\nc\td\t3\n")
    columns = {"sentence1": ["a", "c"], "sentence2": ["b", "d"], "score": [2.5, 3.0]}
    pq.write_table(pa.table(columns), parquet)
    for path in (jsonl, tsv, parquet):
        assert parts(read_pairs(path)) == expected
    assert read_pairs(tsv)[1].source == f"{tsv}:3"


def test_labels_and_named_columns(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("premise,hypothesis,gold,label\na,b,x,1\nc,d,,0\n")
    assert parts(read_pairs(path)) == [("a", "b", None, "1"), ("c", "d", None, "0")]
    named = read_pairs(path, text1="hypothesis", text2="premise", label="gold")
    assert parts(named) == [("b", "a", None, "x"), ("d", "c", None, None)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "p.jsonl: holds no pairs"),
        (
            '{"sentence1": "a"}\n',
            "p.jsonl: no text2 column among sentence1. Rename a column to sentence2 or text2 or "
            "hypothesis or positive or passage or answer, or name the column to use: [columns] "
            "text2 = NAME in a task file, data.columns.text2=NAME in a training.",
        ),
        (ROW % 1 + ROW % "true", "p.jsonl:2: 'score' must be a finite number (True)"),
        (ROW % '"1_0"', "p.jsonl:1: 'score' must be a finite number ('1_0')"),
        (ROW % '"high"', "p.jsonl:1: 'score' must be a finite number ('high')"),
        (ROW % "1e999", "p.jsonl:1: 'score' must be a finite number (inf)"),
        (ROW % "NaN", "p.jsonl:1: NaN is not a JSON value"),
        (ROW % 7, "p.jsonl:1: 'score' must be from 0 to 5 (7)"),
        (ROW.replace('"a"', '" "') % 1, "p.jsonl:1: 'sentence1' must be a text that is"),
        (
            ROW.replace('"a"', "true") % 1,
            "p.jsonl:1: 'sentence1' must be a text that is not blank",
        ),
        (
            ROW.replace('"a"', '"\\ud800"') % 1,
            "p.jsonl:1: invalid UTF-8 or a lone surrogate in",
        ),
        (ROW % '1, "label": [1]', "p.jsonl:1: 'label' must be a string or an integer ([1])"),
        ("[1]\n", "p.jsonl:1: the row is not a JSON object ([1])"),
    ],
)
def test_bad_pairs_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "p.jsonl").write_text(content)
    with pytest.raises(CorpusError) as caught:
        read_pairs(tmp_path / "p.jsonl", score_range=(0, 5))
    assert message in str(caught.value)


def test_an_unknown_column_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(ROW % 1)
    with pytest.raises(CorpusError, match=r"Unknown score column 'scor'; did you mean 'score'\?"):
        read_pairs(tmp_path / "p.jsonl", score="scor")


def test_real_pairs() -> None:
    if not (data := os.environ.get("SBERT_SEARCH_DATA")):
        pytest.skip("SBERT_SEARCH_DATA is not set")
    pairs = read_pairs(Path(data) / "stsb" / "test.jsonl.gz", score_range=(0, 5))
    assert len(pairs) == 1379
    assert len(read_pairs(Path(data) / "mrpc" / "dev.jsonl.gz")) == 500


@pytest.mark.parametrize(
    ("labels", "ordered"),
    [
        ("duplicate not_duplicate", ("not_duplicate", "duplicate")),
        ("entailment contradiction", ("contradiction", "entailment")),
        ("1 0 1", ("0", "1")),
        ("match other", ()),  # which of them is unclear
        ("no neutral", ()),
        ("0 1 2", ()),
        ("yes", ()),
    ],
)
def test_the_label_of_dissimilar_pairs_is_the_first(labels: str, ordered: tuple[str, ...]) -> None:
    assert dissimilar_first(labels.split()) == ordered
