"""Ids and texts keep every separator that Unicode has, in every format that can hold it."""

from __future__ import annotations

import csv
import json
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from sbert_search.text.documents import CorpusReader
from sbert_search.text.labelled.pairs import read_pairs, read_triplets
from sbert_search.text.labelled.retrieval import read_qrels, read_queries

SEPARATORS = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if character.isspace() or unicodedata.category(character) in {"Zl", "Zp", "Zs"}
]
IDS = [f"a{character}b" for character in SEPARATORS]
TEXTS = [f"one{character}two" for character in SEPARATORS]
ONE_LINE = [text for text in TEXTS if "\n" not in text]


def jsonl(path: Path) -> None:
    rows = ({"_id": i, "text": t} for i, t in zip(IDS, TEXTS, strict=True))
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def delimited(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([("id", "text"), *zip(IDS, TEXTS, strict=True)])


def table() -> pa.Table:
    return pa.table({"id": IDS, "text": TEXTS})


WRITERS: dict[str, Callable[[Path], object]] = {
    "x.jsonl": jsonl,
    "x.csv": delimited,
    "x.tsv": delimited,
    "x.parquet": lambda path: pq.write_table(table(), path),
    "x.feather": lambda path: feather.write_feather(table(), str(path)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_tables(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    documents = [doc for batch in CorpusReader(path).batches() for doc in batch.documents]
    assert [(doc.doc_id, doc.text) for doc in documents] == list(zip(IDS, TEXTS, strict=True))
    assert [query.text for query in read_queries(path)] == TEXTS


def test_text_lines_and_files(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes("\r\n".join(ONE_LINE).encode())
    documents = [doc for batch in CorpusReader(path).batches() for doc in batch.documents]
    assert [doc.text for doc in documents] == ONE_LINE
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x.md").write_bytes("".join(TEXTS).encode())
    ((batch),) = CorpusReader(folder).batches()
    assert [doc.text for doc in batch.documents] == ["".join(TEXTS)]


def test_judgements_pairs_and_triplets(tmp_path: Path) -> None:
    ids = [doc_id for doc_id in IDS if "\n" not in doc_id and "\t" not in doc_id]
    (tmp_path / "qrels").mkdir()
    lines = ["query-id\tcorpus-id\tscore", *(f"{doc_id}\t{doc_id}\t1" for doc_id in ids)]
    (tmp_path / "qrels" / "test.tsv").write_bytes("\n".join(lines).encode())
    assert read_qrels(tmp_path) == {doc_id: {doc_id: 1} for doc_id in ids}
    pairs = tmp_path / "pairs.jsonl"
    keys = ("anchor", "positive", "negative")
    rows = (json.dumps(dict.fromkeys(keys, text), ensure_ascii=False) for text in TEXTS)
    pairs.write_bytes("\n".join(rows).encode())
    assert [pair.text1 for pair in read_pairs(pairs)] == TEXTS
    assert [triplet.negatives for triplet in read_triplets(pairs)] == [(text,) for text in TEXTS]
