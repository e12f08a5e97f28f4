"""The same documents come out of every format that can hold them."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from sbert_search.errors import CorpusError
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader
from sbert_search.text.sources import content_sha256, expand
from tests.text.accounting import read_all, zstd

ROWS: list[dict[str, object]] = [
    {"_id": "1", "title": "Tea", "text": 'Green "tea",\nhot', "year": 2019, "price": 2.5},
    {"_id": "2", "title": "", "text": "Café ☕ 𝄞", "year": 2020, "price": 3.0},
    {"_id": "x/3", "title": "Only a title", "text": "", "year": 2021, "price": 0.25},
]
EXPECTED = [
    ("1", "Tea", 'Green "tea",\nhot', {"year": 2019, "price": 2.5}),
    ("2", "", "Café ☕ 𝄞", {"year": 2020, "price": 3.0}),
    ("x/3", "Only a title", "", {"year": 2021, "price": 0.25}),
]


def as_jsonl() -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def as_csv(delimiter: str) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(ROWS[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


def as_table() -> pa.Table:
    return pa.Table.from_pylist(ROWS)


def write_stream(path: Path) -> None:
    with ipc.new_stream(path, as_table().schema) as writer:
        writer.write_table(as_table(), max_chunksize=2)


def write_file(path: Path) -> None:
    with ipc.new_file(path, as_table().schema) as writer:
        writer.write_table(as_table(), max_chunksize=2)


WRITERS: dict[str, Callable[[Path], object]] = {
    "c.jsonl": lambda path: path.write_bytes(as_jsonl()),
    "c.ndjson": lambda path: path.write_bytes(as_jsonl().rstrip(b"\n")),
    "bom.jsonl": lambda path: path.write_bytes(b"\xef\xbb\xbf" + as_jsonl()),
    "crlf.jsonl": lambda path: path.write_bytes(as_jsonl().replace(b"\n", b"\r\n")),
    "c.jsonl.gz": lambda path: path.write_bytes(gzip.compress(as_jsonl())),
    "members.jsonl.gz": lambda path: path.write_bytes(
        gzip.compress(as_jsonl()[:50]) + gzip.compress(as_jsonl()[50:])
    ),
    "c.jsonl.xz": lambda path: path.write_bytes(lzma.compress(as_jsonl())),
    "c.jsonl.zst": lambda path: path.write_bytes(zstd(as_jsonl()[:50]) + zstd(as_jsonl()[50:])),
    "c.csv": lambda path: path.write_bytes(as_csv(",")),
    "bom.csv": lambda path: path.write_bytes(b"\xef\xbb\xbf" + as_csv(",")),
    "C.CSV.GZ": lambda path: path.write_bytes(gzip.compress(as_csv(","))),
    "c.tsv": lambda path: path.write_bytes(as_csv("\t")),
    "c.parquet": lambda path: pq.write_table(as_table(), path, row_group_size=2),
    "c.arrow": write_file,
    "c.ipc": write_stream,
    "c.feather": lambda path: feather.write_feather(as_table(), path, "zstd", chunksize=2),
}


def content(documents: list[Document]) -> list[tuple[str, str, str, dict[str, object]]]:
    return [(doc.doc_id, doc.title, doc.text, dict(doc.metadata)) for doc in documents]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_documents(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    documents, rejects, survey = read_all(tmp_path / name)
    assert not rejects
    assert content(documents) == EXPECTED
    assert survey.columns == {"year": "int64", "price": "float64"}


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("c.jsonl", ["1", "2", "3"]),
        ("c.csv", ["2", "4", "5"]),
        ("c.parquet", ["row group 1:row 1", "row group 1:row 2", "row group 2:row 1"]),
        ("c.arrow", ["batch 1:row 1", "batch 1:row 2", "batch 2:row 1"]),
    ],
)
def test_a_document_knows_its_place(tmp_path: Path, name: str, places: list[str]) -> None:
    WRITERS[name](tmp_path / name)
    documents, _, _ = read_all(tmp_path / name)
    assert [doc.source for doc in documents] == [f"{tmp_path / name}:{place}" for place in places]


@pytest.mark.parametrize("name", ["c.jsonl", "c.csv", "c.parquet", "c.arrow"])
def test_ids_without_an_id_field_follow_the_file(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    with_id, _, _ = read_all(tmp_path / name)
    for row in ROWS:
        row["key"] = row.pop("_id")
    try:
        WRITERS[name](tmp_path / name)
        documents, _, _ = read_all(tmp_path / name)
    finally:
        for row in ROWS:
            row["_id"] = row.pop("key")
    numbers = ["2", "4", "5"] if name == "c.csv" else ["1", "2", "3"]
    assert [doc.doc_id for doc in documents] == [f"{name}#{number}" for number in numbers]
    assert [doc.text for doc in documents] == [doc.text for doc in with_id]


def test_parquet_types_are_kept(tmp_path: Path) -> None:
    time = datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    columns = {
        "id": pa.array([1, 2], pa.int32()),
        "text": pa.array(["a", "b"]).dictionary_encode(),
        "naive": pa.array([time.replace(tzinfo=None), None], pa.timestamp("ns")),
        "zoned": pa.array([time, None], pa.timestamp("ms", "Europe/Berlin")),
        "day": pa.array([date(2020, 1, 2), None], pa.date64()),
        "flag": pa.array([True, None]),
        "price": pa.array([1.5, float("nan")], pa.float32()),
        "cost": pa.array(["1.25", None]).cast(pa.decimal128(9, 2)),
        "raw": pa.array([b"caf\xc3\xa9", None], pa.binary()),
        "nested": pa.array([{"a": [1, 2]}, None]),
        "nothing": pa.nulls(2),
    }
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    documents, rejects, survey = read_all(tmp_path / "c.parquet")
    assert not rejects
    assert [doc.doc_id for doc in documents] == ["1", "2"]
    assert documents[0].metadata == {
        "naive": time,
        "zoned": time.replace(microsecond=678000),
        "day": date(2020, 1, 2),
        "flag": True,
        "price": 1.5,
        "cost": 1.25,
        "raw": "café",
        "nested": '{"a": [1, 2]}',
    }
    assert documents[1].metadata == {}
    assert survey.columns == {
        "naive": "timestamp",
        "zoned": "timestamp",
        "day": "date",
        "flag": "bool",
        "price": "float64",
        "cost": "float64",
        "raw": "string",
        "nested": "string",
    }


def test_standard_input_is_read_like_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(as_jsonl())))
    (tmp_path / "l.txt").write_text("a line")
    documents, _, survey = read_all("-", tmp_path / "l.txt")
    assert content(documents[:3]) == EXPECTED
    assert [doc.source for doc in documents[:3]] == ["<stdin>:1", "<stdin>:2", "<stdin>:3"]
    assert documents[3].doc_id == "l.txt#1"
    assert survey.rows == 4


def test_globs_are_sorted_and_equal_names_told_apart(tmp_path: Path) -> None:
    for folder in ("b", "a"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.txt").write_text(f"text of {folder}\n")
    documents, _, _ = read_all(f"{tmp_path}/*/c.txt")
    assert [doc.doc_id for doc in documents] == ["a/c.txt#1", "b/c.txt#1"]
    assert [doc.text for doc in documents] == ["text of a", "text of b"]


def test_a_folder_is_read_in_order_without_hidden_files(tmp_path: Path) -> None:
    names = ["b.md", "a/z.txt", "a.txt", ".hidden.txt", ".git/c.txt", "notes.doc"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + name.encode())
    documents, _, _ = read_all(tmp_path)
    assert [(doc.doc_id, doc.text) for doc in documents] == [
        ("a.txt", "a.txt"),
        ("a/z.txt", "a/z.txt"),
        ("b.md", "b.md"),
    ]
    assert documents[1].source == f"{tmp_path}/a/z.txt:1"


def test_the_hash_is_that_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc")
    (tmp_path / "b.txt").write_bytes(b"")
    of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    one, both = expand([tmp_path / "a.txt"]), expand([tmp_path])
    assert content_sha256(one) == of_abc
    of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    listing = tmp_path / "listing"
    listing.write_text(f"{of_abc}  a.txt\n{of_nothing}  b.txt\n")
    listing.rename(tmp_path / "listing.csv")
    assert content_sha256(both) == content_sha256(expand([tmp_path / "listing.csv"]))


def test_a_file_that_changes_after_the_survey_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(as_jsonl())
    reader = CorpusReader(path)
    reader.survey()
    path.write_bytes(as_jsonl() + b'{"_id": "4", "text": "new"}\n')
    with pytest.raises(CorpusError, match=r"c\.jsonl: changed while it was read"):
        list(reader.batches())


def test_a_compression_we_do_not_know_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl.bz2").write_bytes(bz2.compress(as_jsonl()))
    with pytest.raises(CorpusError, match=r"c\.jsonl\.bz2: unknown file extension"):
        CorpusReader(tmp_path / "c.jsonl.bz2")


@pytest.mark.parametrize(
    ("name", "kind", "beyond"),
    [
        ("c.parquet", pa.timestamp("us"), 2**62),
        ("c.parquet", pa.timestamp("us", "UTC"), -(2**62)),
        ("c.parquet", pa.date32(), 2**31 - 1),
        ("c.arrow", pa.timestamp("us"), 2**62),
        ("c.arrow", pa.timestamp("s"), 2**62),  # in microseconds it would wrap around to 1970
        ("c.arrow", pa.timestamp("ms"), -(2**61)),
        ("c.arrow", pa.date32(), -(2**31)),
        ("c.arrow", pa.date64(), 2**62 // 86_400_000 * 86_400_000),
        ("c.arrow", pa.duration("s"), 2**62),
    ],
)
def test_a_time_beyond_the_years_1_to_9999_is_one_bad_row(
    tmp_path: Path, name: str, kind: pa.DataType, beyond: int
) -> None:
    size = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    values = pa.array([None, None, beyond, None, None], size).cast(kind)
    for column in (values, pa.StructArray.from_arrays([values], ["nested"])):
        table = pa.table({"id": list("abcde"), "text": ["t"] * 5, "when": column})
        if name == "c.parquet":
            pq.write_table(table, tmp_path / name)
        else:
            with pa.ipc.new_file(tmp_path / name, table.schema) as file:
                file.write_table(table)
        documents, [reject], _ = read_all(tmp_path / name)
        assert [doc.doc_id for doc in documents] == ["a", "b", "d", "e"]
        assert reject.reason.startswith("column 'when' cannot be read: ")
        assert reject.source.endswith("row 3")
