"""Queries and judgements are read whole or refused by line."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.errors import CorpusError
from sbert_search.records import Query
from sbert_search.text.labelled.retrieval import read_qrels, read_queries

HEADER = "query-id\tcorpus-id\tscore\n"


def write_qrels(folder: Path, text: str | bytes, split: str = "test") -> Path:
    (folder / "qrels").mkdir(exist_ok=True)
    data = text if isinstance(text, bytes) else text.encode()
    (folder / "qrels" / f"{split}.tsv").write_bytes(data)
    return folder


def test_queries_of_a_folder_and_of_a_file(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "queries.jsonl.gz", "wt") as file:
        file.write('{"_id": "q1", "text": "tea"}\n{"_id": 2, "text": "coffee", "metadata": {}}\n')
    expected = [Query("q1", "tea"), Query("2", "coffee")]
    assert read_queries(tmp_path) == expected
    assert read_queries(tmp_path / "queries.jsonl.gz") == expected


def test_qrels_keep_their_order_and_grades(tmp_path: Path) -> None:
    write_qrels(tmp_path, HEADER + "q2\td 1\t2\r\nq1\td3\t0\r\n\nq2\td4\t-1\nq2\td4\t-1\n")
    assert read_qrels(tmp_path) == {"q2": {"d 1": 2, "d4": -1}, "q1": {"d3": 0}}


def test_qrels_of_trec_have_four_columns_and_no_header(tmp_path: Path) -> None:
    lines = "q2 0 d13-2 2\r\nq1\tQ0\td\u00a03\t0\n\n  q2 0  d4 -1 \nq2 0 d4 -1\n"
    write_qrels(tmp_path, lines)
    assert read_qrels(tmp_path) == {"q2": {"d13-2": 2, "d4": -1}, "q1": {"d\u00a03": 0}}


@pytest.mark.parametrize(
    "content",
    [
        "query iter doc grade\nq1 0 d1 1\n",
        "q1 0 d1 1.0\n",
        "q1 0 d1 1 5\n",
        "q1 0 d1 1\nq1 0 d1 1 5\n",
    ],
)
def test_what_trec_s_format_has_not_is_told_with_what_it_has(tmp_path: Path, content: str) -> None:
    write_qrels(tmp_path, content)
    columns = "no header and four columns, separated by white space: query id, iteration, document"
    with pytest.raises(CorpusError, match=columns):
        read_qrels(tmp_path)


IDS = st.text("abc-\u00a0é", min_size=1).filter(str.strip)
JUDGEMENTS = st.dictionaries(
    IDS, st.dictionaries(IDS, st.integers(-2, 4), min_size=1, max_size=3), min_size=1, max_size=3
)


@given(JUDGEMENTS)
def test_both_formats_give_the_same_judgements(
    tmp_path_factory: pytest.TempPathFactory, qrels: dict[str, dict[str, int]]
) -> None:
    rows = [(q, d, grade) for q, grades in qrels.items() for d, grade in grades.items()]
    folder = tmp_path_factory.mktemp("qrels")
    for text in (
        HEADER + "".join(f"{q}\t{d}\t{grade}\n" for q, d, grade in rows),
        "".join(f"{q} 0 {d} {grade}\n" for q, d, grade in rows),
    ):
        assert read_qrels(write_qrels(folder, text)) == qrels


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q1\td 1\t1\n", "test.tsv:1: the first line must be a header"),
        ("q1 0 d1 1\nq1 d1 1\n", "test.tsv:2: 3 cells, after a first line of TREC's format"),
        ("q1 0 d1 1\nq1 0 d1 high\n", "test.tsv:2: the grade must be an integer"),
        ("q1 0 d1 1\nq1 0 d1 0\n", "test.tsv:2: an earlier line has the grade 1 for"),
        ("q1\td1\t1\n", "test.tsv:1: the first line must be a header"),
        (HEADER + "q1\td1\n", "test.tsv:2: not three cells"),
        (HEADER + "q1 d1 1\n", "test.tsv:2: not three cells"),
        (HEADER + "q1\t\t1\n", "test.tsv:2: not three cells"),
        (
            HEADER + "q1\td1\t1.5\n",
            "test.tsv:2: the grade must be an integer of at most nine digits ('1.5')",
        ),
        (HEADER + "q1\td1\t2\x1f\n", "test.tsv:2: the grade must be an integer"),
        (HEADER + "q1\td1\t٣\n", "test.tsv:2: the grade must be an integer"),
        (
            HEADER + "q1\td1\t1\nq1\td1\t0\n",
            "test.tsv:3: an earlier line has the grade 1 for",
        ),
        (HEADER.encode() + b"q1\td\xff\t1\n", "test.tsv:2: invalid UTF-8 at byte 5"),
        (HEADER, "test.tsv: holds no judgements"),
        ("", "test.tsv: holds no judgements"),
    ],
)
def test_bad_qrels_are_named(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(CorpusError) as caught:
        read_qrels(write_qrels(tmp_path, content))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"_id": "q", "text": " "}', "queries.jsonl:1: the query has no text ('q')"),
        ('{"_id": "q", "title": "t", "text": ""}', "queries.jsonl:1: the query has no text ('q')"),
        ('{"text": "tea", "_id": null}', "queries.jsonl:1: the row has no id ('_id' is missing"),
        (
            '{"_id": "q", "query": "t"}',
            "no text field among '_id', 'query'. Rename the field of the query to 'text'.",
        ),
        (
            '{"_id": "q", "text": "a"}\n{"_id": "q", "text": "b"}',
            "queries.jsonl:2: an earlier query has",
        ),
        ("{", "queries.jsonl:1: broken JSON at column 2"),
        ("", "queries.jsonl: holds no queries"),
    ],
)
def test_bad_queries_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "queries.jsonl").write_text(content)
    with pytest.raises(CorpusError) as caught:
        read_queries(tmp_path)
    assert message in str(caught.value)


def test_absent_files_are_named_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"has no queries\.jsonl"):
        read_queries(tmp_path)
    write_qrels(tmp_path, HEADER, "dev")
    with pytest.raises(CorpusError, match=r"test\.tsv: no such file; existing splits: dev"):
        read_qrels(tmp_path)


@pytest.mark.parametrize(("name", "queries", "judged"), [("scifact", 1109, 339), ("npl", 93, 2083)])
def test_real_collections(name: str, queries: int, judged: int) -> None:
    if not (data := os.environ.get("SBERT_SEARCH_DATA")):
        pytest.skip("SBERT_SEARCH_DATA is not set")
    assert len(read_queries(Path(data) / name)) == queries
    assert sum(map(len, read_qrels(Path(data) / name).values())) == judged
