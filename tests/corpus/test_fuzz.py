"""Damaged bytes never bring out anything but a CorpusError, and never lose a row from the count.

`FAULT_SCALE=full` tries a hundred times as many.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbert_search.corpus.beir import read_qrels
from sbert_search.corpus.pairs import read_pairs
from sbert_search.corpus.trec import read_run
from sbert_search.errors import CorpusError
from tests.corpus.accounting import read_all, zstd

SCALE = 100 if os.environ.get("FAULT_SCALE") == "full" else 1

JSONL = (
    '{"_id": "a", "title": "Tea", "text": "Café \\u2615 \\ud834\\udd1e", "n": 1.5e3, "b": true}\n'
    '{"_id": 12, "text": "two\\nlines", "n": -4, "m": {"k": [null, 1]}}\r\n\n'
    '{"_id": "c", "title": "", "text": "x", "n": null}\n'
).encode()
CSV = 'id,title,text,n\na,"T, t","two\nlines",1\r\n\nb,,"a ""quote""",2.5\nc,é,text,\n'.encode()
QRELS = b"query-id\tcorpus-id\tscore\nq1\td1\t2\r\nq1\td2\t0\n\nq2\td1\t-1\n"
RUN = b"q1 Q0 d1 1 2.5 us\nq1 Q0 d2 2 -1e-3 us\nq2 Q0 d1 1 1 us\n"
PAIRS = b'sentence1\tsentence2\tscore\tlabel\na\tb\t2.5\tx\nc\t"d\ne"\t0\t\n'
TEXT = "one line\n\nanother, é\r\n".encode()


def read_columnar(path: Path) -> object:
    return read_all(path, batch_rows=7)


SEEDS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "c.jsonl": (JSONL, read_all),
    "c.csv": (CSV, read_all),
    "c.tsv": (CSV.replace(b",", b"\t"), read_all),
    "c.txt": (TEXT, read_all),
    "c.jsonl.zst": (zstd(JSONL), read_all),
    "qrels/test.tsv": (QRELS, lambda path: read_qrels(path.parent.parent)),
    "run.trec": (RUN, read_run),
    "pairs.tsv": (PAIRS, read_pairs),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fuzz")
    (made / "qrels").mkdir()
    return made


def read_damaged(path: Path, data: bytes, read: Callable[[Path], object]) -> None:
    path.write_bytes(data)
    with contextlib.suppress(CorpusError):
        read(path)


def mutated(seed: bytes, rng: random.Random) -> bytes:
    data = bytearray(seed)
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                del data[place : place + rng.randint(1, 4)]
            case 1:
                data[place:place] = data[rng.randrange(len(data)) :][:5]
            case _:
                data[place] = rng.choice(b'\0\n\r\t",{}[]:\\\xff\xc3 ') or rng.randrange(256)
        data = data or bytearray(b"\n")
    return bytes(data)


@pytest.mark.parametrize("name", SEEDS)
def test_mutated_bytes_of_text_formats(folder: Path, name: str) -> None:
    seed, read = SEEDS[name]
    read_damaged(folder / name, seed, read)
    rng = random.Random(name)
    for _ in range(400 * SCALE):
        read_damaged(folder / name, mutated(seed, rng), read)


@pytest.mark.parametrize("name", ["c.parquet", "c.arrow", "c.ipc", "c.feather"])
def test_mutated_bytes_of_columnar_formats(folder: Path, name: str) -> None:
    table = pa.table(
        {
            "id": [str(n) for n in range(30)],
            "text": [f"text {n}" for n in range(30)],
            "nested": [{"a": [n, None]} for n in range(30)],
            "word": pa.array(["x", "y", None] * 10).dictionary_encode(),
        }
    )
    path = folder / name
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path, row_group_size=10)
        case ".feather":
            feather.write_feather(table, path, "zstd", chunksize=10)
        case suffix:
            new = ipc.new_file if suffix == ".arrow" else ipc.new_stream
            with new(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=10)
    seed, rng = path.read_bytes(), random.Random(name)
    assert len(read_all(path)[0]) == 30
    for _ in range(200 * SCALE):
        read_damaged(path, mutated(seed, rng), read_columnar)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(["_id", "text", "title", "n", "\ud800", "", "id"])


@settings(max_examples=150 * SCALE, deadline=None)
@given(st.lists(st.dictionaries(FIELDS, JSON_VALUES), min_size=1, max_size=5))
def test_any_json_objects(folder: Path, rows: list[dict[str, object]]) -> None:
    lines = [json.dumps(row).encode() for row in rows]
    read_damaged(folder / "any.jsonl", b"\n".join(lines), read_all)


@settings(max_examples=150 * SCALE, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(sorted(SEEDS)))
def test_any_bytes(folder: Path, data: bytes, name: str) -> None:
    read_damaged(folder / name, data, SEEDS[name][1])
