"""Everything that parses bytes from elsewhere: a sound input of each, and how it is read."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import xxhash

from sbert_search.corpus.beir import read_qrels, read_queries
from sbert_search.corpus.pairs import read_pairs
from sbert_search.corpus.trec import read_run
from sbert_search.errors import CorpusError, IndexStoreError, SbertSearchError
from sbert_search.index.check import check
from sbert_search.index.manifest import NAME, StoreSettings
from sbert_search.index.store import IndexStore
from tests.corpus.accounting import read_all, zstd
from tests.index.batches import make_batch, some_documents, some_vectors

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


QUERIES = b'{"_id": "q1", "text": "water?"}\n{"_id": "q2", "text": "caf\\u00e9", "more": [1]}\n'


@dataclass(frozen=True)
class Parser:
    """One kind of input.

    Attributes:
        file: Name of the file that is damaged, below the folder given to ``prepare``.
        prepare: Makes that file, sound, with whatever else is needed.
        read: Reads it.
        refuses: What reading may raise.
        mutate: Damages it.
    """

    file: str
    prepare: Callable[[Path], object]
    read: Callable[[Path], object]
    refuses: type[SbertSearchError] = CorpusError
    mutate: Callable[[bytes, random.Random], bytes] = lambda data, rng: mutated(data, rng)


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


HOSTILE: tuple[Any, ...] = (
    *(-1, 0, 1, 2**31, 2**63, 2**200, 1e308, -0.0, float("nan"), True, None, "", "x" * 5000),
    *("../../etc/passwd", "/etc/passwd", "seg/000000.vec.npy", "del/999999.npy", "\ud800", "\0"),
    *([], {}, [[]] * 50, {"name": "seg/000000.vec.npy"}, {"": {"": {}}}),
)


def mutated_manifest(data: bytes, rng: random.Random) -> bytes:
    """Change a manifest's values or bytes, and sign the result, so that it is read on."""
    body = data.partition(b"\n")[2]
    if rng.random() < 0.3:
        body = mutated(body, rng)
    else:
        values = json.loads(body)
        for _ in range(rng.randint(1, 3)):
            _change(values, rng)
        body = json.dumps(values).encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _change(values: Any, rng: random.Random) -> None:
    """Give one place, somewhere inside, another value; or take it away, or double it."""
    while isinstance(values, (dict, list)) and values:
        key = rng.choice(list(values)) if isinstance(values, dict) else rng.randrange(len(values))
        inner = values[key]
        if not (isinstance(inner, (dict, list)) and inner) or rng.random() < 0.15:
            match rng.randrange(4):
                case 0:
                    del values[key]
                case 1 if isinstance(values, list):
                    values.append(inner)
                case 2 if isinstance(inner, int):
                    values[key] = inner + rng.choice([-2, -1, 1, 2, 1000])
                case _:
                    values[key] = rng.choice(HOSTILE)
            return
        values = inner


def make_index(folder: Path) -> None:
    """A small index with two segments, dead rows, passages and a metadata column."""
    shutil.rmtree(folder / "i", ignore_errors=True)
    store = IndexStore.create(folder / "i", StoreSettings(dim=8), {"year": "int64"})
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(5), some_vectors(8), [1, 3, 2, 1, 1]))
        writer.commit(make_batch(some_documents(3, "e"), some_vectors(3)))
        writer.delete(["d1"])


def use_index(folder: Path) -> None:
    """Open, search, filter, look up and read everything."""
    check(folder / "i")
    snapshot = IndexStore.open(folder / "i").snapshot
    queries = np.ones((1, snapshot.settings.dim), np.float32)
    _, rows = snapshot.search(queries, 5)
    snapshot.fetch(rows[rows >= 0])
    snapshot.lookup(["d0", "d1", "absent"])
    if "year" in snapshot.columns:
        snapshot.filter_mask("year > 2001")
    for _ in snapshot.iter_documents():
        pass


def use_signed(name: str) -> Callable[[Path], None]:
    """Make the manifest say that a damaged file is as it should be, and use the index."""

    def use(folder: Path) -> None:
        manifest, data = folder / "i" / NAME, (folder / "i" / name).read_bytes()
        values = json.loads(manifest.read_bytes().partition(b"\n")[2])
        record = next(r for s in values["segments"] for r in s.values() if _is_of(r, name))
        record |= {"size_bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
        body = json.dumps(values).encode()
        manifest.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        use_index(folder)

    return use


def _is_of(record: Any, name: str) -> bool:
    return isinstance(record, dict) and record.get("name") == name


def columnar(name: str) -> Callable[[Path], None]:
    """Write a table with all that is hard to read in a format."""

    def write(folder: Path) -> None:
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

    return write


def text(name: str, data: bytes, read: Callable[[Path], object]) -> Parser:
    """A format of text, read by its path."""

    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)

    return Parser(name, write, lambda folder: read(folder / name))


def _read_columnar(name: str) -> Parser:
    return Parser(name, columnar(name), lambda folder: read_all(folder / name, batch_rows=7))


def _of_index(name: str) -> Parser:
    return Parser(f"i/{name}", make_index, use_signed(name), IndexStoreError)


PARSERS: dict[str, Parser] = {
    "jsonl": text("c.jsonl", JSONL, read_all),
    "csv": text("c.csv", CSV, read_all),
    "tsv": text("c.tsv", CSV.replace(b",", b"\t"), read_all),
    "text": text("c.txt", TEXT, read_all),
    "zstd": text("c.jsonl.zst", zstd(JSONL), read_all),
    "qrels": text("qrels/test.tsv", QRELS, lambda path: read_qrels(path.parent.parent)),
    "run": text("run.trec", RUN, read_run),
    "pairs": text("pairs.tsv", PAIRS, read_pairs),
    "queries": text("queries.jsonl", QUERIES, read_queries),
    **{kind: _read_columnar(f"c.{kind}") for kind in ("parquet", "arrow", "ipc", "feather")},
    "manifest": Parser(
        f"i/{NAME}", make_index, use_index, IndexStoreError, mutate=mutated_manifest
    ),
    "docs": _of_index("seg/000000.docs.arrow"),
    "vectors": _of_index("seg/000000.vec.npy"),
    "ids": _of_index("seg/000000.ids.npy"),
}
