"""Triplets and groups from table files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbert_search.errors import CorpusError
from sbert_search.records import Query
from sbert_search.text.fields import FieldNames
from sbert_search.text.labelled.pairs import read_groups, read_pairs, read_triplets
from sbert_search.text.labelled.records import Triplet
from sbert_search.text.labelled.retrieval import collection_of_pairs, read_queries
from sbert_search.text.labelled.texts import read_labelled_texts


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_triplets_from_every_format(tmp_path: Path) -> None:
    row = {"anchor": "a", "positive": "b", "negative": "c"}
    csv, parquet = tmp_path / "t.csv", tmp_path / "t.parquet"
    csv.write_text("anchor,positive,negative\na,b,c\n")
    pq.write_table(pa.table({name: [text] for name, text in row.items()}), parquet)
    for path in (write(tmp_path / "t.jsonl", row), csv, parquet):
        (triplet,) = read_triplets(path)
        assert (triplet.anchor, triplet.positive, triplet.negatives) == ("a", "b", ("c",))
    assert read_triplets(csv)[0].source == f"{csv}:2"


@pytest.mark.parametrize(
    "told",
    [
        *({"label": 0}, {"label": "0"}, {"label": False}, {"score": 0.0}, {"score": -1}),
        *({"gold_label": "contradiction"}, {"gold_label": "Neutral"}, {"similarity": "0.00"}),
    ],
)
def test_a_pair_that_its_score_or_label_denies_is_no_positive_pair(
    tmp_path: Path, told: dict[str, object]
) -> None:
    (name,) = told
    pair = {"query": "headlamp", "positive": "a pillow"}
    path = write(tmp_path / "clicks.jsonl", pair | {name: 1}, pair | told)
    with pytest.raises(CorpusError, match=rf"clicks.jsonl:2: its '{name}' says .* no pair"):
        read_triplets(path, allow_pairs=True)
    # Beside a negative, it says something else, such as the margin of a teacher.
    path = write(tmp_path / "margins.jsonl", pair | told | {"negative": "a tent"})
    assert len(read_triplets(path, allow_pairs=True)) == 1


@pytest.mark.parametrize(
    "told", [{"label": 1}, {"label": "entailment"}, {"score": 0.2}, {"label": None}, {}]
)
def test_a_pair_with_another_score_or_label_is_a_positive_pair(
    tmp_path: Path, told: dict[str, object]
) -> None:
    path = write(tmp_path / "clicks.jsonl", {"query": "lamp", "positive": "a headlamp"} | told)
    assert len(read_triplets(path, allow_pairs=True)) == 1


def test_a_file_without_rows_or_without_fields_is_named(tmp_path: Path) -> None:
    readers: tuple[tuple[Callable[[Path], object], str], ...] = (
        (read_triplets, "triplets"),
        (read_groups, "groups"),
        (read_pairs, "pairs"),
        (read_labelled_texts, "labelled texts"),
    )
    for read, kind in readers:
        with pytest.raises(CorpusError, match=f"t.jsonl: holds no {kind}"):
            read(write(tmp_path / "t.jsonl"))
        with pytest.raises(CorpusError, match=r"no \w+ column, since the first rows have"):
            read(write(tmp_path / "t.jsonl", {}))


def test_negatives_in_columns_and_lists(tmp_path: Path) -> None:
    columns = {"query": "a", "positive": "b", "negative_2": "d", "negative_1": "c"}
    listed = {"query": "a", "positive": "b", "negatives": ["c", "d"]}
    for row in (columns, listed):
        (triplet,) = read_triplets(write(tmp_path / "t.jsonl", row))
        assert triplet.negatives == ("c", "d")
    named = read_triplets(tmp_path / "t.jsonl", anchor="positive", positive="query")
    assert named[0].anchor == "b"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"anchor": "a", "positive": "b"},
            "no negative column among anchor, positive; name the column to use",
        ),
        ({"a": "a", "negative": "b"}, "no anchor column among a, negative. Rename a column to "),
        ({"anchor": "a", "positive": " ", "negative": "c"}, ":1: 'positive' must be a text that"),
        ({"anchor": "a", "positive": "b", "negatives": []}, ":1: no text in 'negatives'"),
        ({"anchor": "a", "positive": "b", "negatives": [""]}, ":1: 'negatives' must be a list of"),
    ],
)
def test_what_is_no_triplet_is_refused_with_its_place(
    tmp_path: Path, row: object, message: str
) -> None:
    with pytest.raises(CorpusError, match=message):
        read_triplets(write(tmp_path / "t.jsonl", row))


def test_a_named_column_that_is_absent_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"anchor": "a", "positive": "b", "negative": "c"})
    with pytest.raises(CorpusError, match="Unknown negative column 'negativ'; did you"):
        read_triplets(path, negative="negativ")


def test_the_column_of_the_negative_is_not_that_of_the_positive(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"anchor": "a", "passage": "n", "answer": "p"})
    (triplet,) = read_triplets(path, negative="passage")
    assert (triplet.positive, triplet.negatives) == ("p", ("n",))


@pytest.mark.parametrize(
    ("names", "part"),
    [
        ({"positive": "negative_2"}, "positive"),
        ({"anchor": "negative_2"}, "anchor"),
        ({"positive": "text", "negative": "text"}, "positive"),
    ],
)
def test_a_negative_column_is_no_other_part(
    tmp_path: Path, names: dict[str, Any], part: str
) -> None:
    row = {"query": "a", "passage": "p", "text": "t", "negative_1": "n", "negative_2": "m"}
    path = write(tmp_path / "t.jsonl", row)
    column = names[part]
    with pytest.raises(CorpusError, match=f"column {column!r} is named as the {part}, but it is"):
        read_triplets(path, **names)
    if "negative" not in names:
        (triplet,) = read_triplets(path, **names, negative="negative_1")
        assert triplet.negatives == ("n",)


def test_groups_of_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "g.jsonl", {"captions": ["a", "b", "a"]})
    assert read_groups(path)[0].texts == ("a", "b")
    alone = write(tmp_path / "one.jsonl", {"captions": ["a", "a"]})
    with pytest.raises(CorpusError, match=r"one.jsonl:1: .* two or more different texts"):
        read_groups(alone)


def test_a_later_row_may_have_more_negatives(tmp_path: Path) -> None:
    row = {"anchor": "a", "positive": "p", "negative": "n"}
    rows = [row] * 120 + [{**row, "negative_2": "m"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    triplets = read_triplets(tmp_path / "t.jsonl")
    assert [triplet.negatives for triplet in triplets[119:]] == [("n",), ("n", "m")]
    assert len(read_triplets(tmp_path / "t.jsonl", negative="negative")[-1].negatives) == 1


def test_ids_of_pairs_are_their_numbers() -> None:
    pairs = [
        Triplet("who mills", "a miller", ("a baker",)),
        Triplet("who bakes", "a baker", ()),
        Triplet("who mills", "the mill", ()),
        Triplet("a baker", "who bakes", ()),
    ]
    documents, queries, qrels = collection_of_pairs(pairs)
    assert {row["_id"]: row["text"] for row in documents} == {
        "1.1": "a miller",
        "1.2": "a baker",
        "3.1": "the mill",
        "2": "who bakes",
    }
    assert [(query.query_id, query.text) for query in queries] == [
        ("1", "who mills"),
        ("2", "who bakes"),
        ("1.2", "a baker"),
    ]
    assert qrels == {"1": {"1.1": 1, "3.1": 1}, "2": {"1.2": 1}, "1.2": {"2": 1}}


def test_integers_are_texts_of_pairs_triplets_groups_and_queries(tmp_path: Path) -> None:
    values: dict[str, object] = {"_id": 3, "anchor": 1984, "positive": "Orwell"}
    values |= {"negative": [451, "a"], "texts": [1, "b"]}
    json_lines, parquet = tmp_path / "t.jsonl", tmp_path / "t.parquet"
    json_lines.write_text(json.dumps(values))
    assert read_triplets(json_lines)[0].negatives == ("451", "a")
    assert read_groups(json_lines)[0].texts == ("1", "b")
    pq.write_table(pa.table({"_id": [3], "anchor": [1984], "positive": [12]}), parquet)
    for path, positive in ((json_lines, "Orwell"), (parquet, "12")):
        (pair,) = read_pairs(path)
        assert (pair.text1, pair.text2) == ("1984", positive)
        assert read_queries(path, fields=FieldNames(text="anchor")) == [Query("3", "1984")]
    json_lines.write_text('{"anchor": 1.5, "positive": "b"}')
    with pytest.raises(CorpusError, match=r"'anchor' must be a text that is not blank \(1\.5\)"):
        read_pairs(json_lines)
