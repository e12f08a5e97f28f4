"""Everything that parses bytes from elsewhere: a sound input of each, and how it is read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import xxhash

from sbert_search.errors import ConfigError, CorpusError, IndexStoreError, SbertSearchError
from sbert_search.index.lexical.postings import LexicalFiles, merge_in_memory
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import transaction
from sbert_search.index.storage.manifest import NAME, Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from sbert_search.text.ids import read_ids
from sbert_search.text.labelled.pairs import read_pairs
from sbert_search.text.labelled.retrieval import read_qrels, read_queries, read_run
from tests.fuzz.mutations import mutated, mutated_manifest, overwritten
from tests.index.batches import make_batch, some_documents, some_vectors
from tests.text.accounting import read_all, zstd

JSONL = (
    '{"_id": "a", "title": "Tea", "text": "Café \\u2615 \\ud834\\udd1e", "n": 1.5e3, "b": true}\n'
    '{"_id": 12, "text": "two\\nlines", "n": -4, "m": {"k": [null, 1]}}\r\n\n'
    '{"_id": "c", "title": "", "text": "x", "n": null}\n'
).encode()
CSV = 'id,title,text,n\na,"T, t","two\nlines",1\r\n\nb,,"a ""quote""",2.5\nc,é,text,\n'.encode()
QRELS = b"query-id\tcorpus-id\tscore\nq1\td1\t2\r\nq1\td2\t0\n\nq2\td1\t-1\n"
TREC_QRELS = b"q1 0 d1 2\r\nq1 0 d2 0\n\nq2\t0\td1\t-1\n"
RUN = b"q1 Q0 d1 1 2.5 us\nq1 Q0 d2 2 -1e-3 us\nq2 Q0 d1 1 1 us\n"
IDS = "\ufeffa\nb c\r\n\ne\u2028\u00e9\n".encode()
PAIRS = b'sentence1\tsentence2\tscore\tlabel\na\tb\t2.5\tx\nc\t"d\ne"\t0\t\n'
MARKDOWN = "---\ntitle: Té\n---\n\n# Tea [a](b)\n\n```\ncode\n```\n".encode()
HTML = b'<title>Tea</title><!-- c --><h1 id="a > b">T<b>e</b>a</h1><script>1</script><p>&#233;'
NOTEBOOK = b'{"cells": [{"cell_type": "markdown", "source": ["# T\\n", "x"]}, {"source": "y"}]}'
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
    refuses: type[SbertSearchError] | tuple[type[SbertSearchError], ...] = CorpusError
    mutate: Callable[[bytes, random.Random], bytes] = mutated


def make_index(folder: Path, *, n_segments: int = 1) -> None:
    """A small index with dead rows, passages, words and a metadata column."""
    shutil.rmtree(folder / "i", ignore_errors=True)
    lexical = LexicalSettings(language="none")
    empty = Manifest.new(VectorSettings(dim=8), {"year": "int64"}, lexical=lexical)
    store = IndexStore.create(folder / "i", empty)
    # Each file of a commit for itself, not in a pack.
    with mock.patch.object(transaction, "PACK_BYTES", -1), store.writer() as writer:
        for prefix in "de"[:n_segments]:
            documents = some_documents(5, prefix)
            writer.commit(make_batch(documents, some_vectors(8), [1, 3, 2, 1, 1]))
        writer.delete(["d1"])


def opened(folder: Path, *uses: Callable[[Snapshot], object]) -> None:
    """Open an index, and use it in some ways."""
    snapshot = IndexStore.open(folder / "i").snapshot
    for use in uses:
        use(snapshot)


def search(snapshot: Snapshot) -> None:
    """Search by a vector, and read what is found."""
    _, rows = snapshot.search(np.ones((1, snapshot.settings.dim), np.float32), 5)
    snapshot.fetch(rows[rows >= 0])


def look_up(snapshot: Snapshot) -> None:
    """Look documents up by their ids, and check the index."""
    snapshot.lookup(["d0", "d1", "absent"])
    check(snapshot.path)


def read_all_documents(snapshot: Snapshot) -> None:
    """Read every document, and filter by its metadata."""
    for _ in snapshot.iter_documents():
        pass
    if "year" in snapshot.columns:
        snapshot.filter_mask("year > 2001")


def search_words(snapshot: Snapshot) -> None:
    """Open postings, merge them as compaction does, search by words, and read what is found.

    An index counts the words anew whose postings it refuses or misses; here a refusal ends it.
    """
    sources = []
    for i, segment in enumerate(snapshot.segments):
        if record := segment.record.lexical:
            with contextlib.suppress(FileNotFoundError):
                postings = LexicalFiles(snapshot.folder, record, segment.record.n_docs).postings
                sources.append((postings, snapshot.live_docs(i)))
    if sources:
        merge_in_memory(sources)
    ((rows, *_),) = snapshot.lexical.search(["text of 1"], 5)
    snapshot.fetch(rows)


EVERY_USE = (search, look_up, read_all_documents, search_words)


def sign(folder: Path, name: str) -> None:
    """Make the manifest say that a damaged file is as it should be."""
    manifest, data = folder / "i" / NAME, (folder / "i" / name).read_bytes()
    values = json.loads(manifest.read_bytes().partition(b"\n")[2])
    record = next(_records_of(values["segments"], name))
    record |= {"size_bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
    body = json.dumps(values).encode()
    manifest.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def _records_of(values: Any, name: str) -> Iterator[dict[str, Any]]:
    """Find what a manifest says of a file."""
    if isinstance(values, dict) and values.get("name") == name:
        yield values
    elif isinstance(values, (dict, list)):
        for inner in values.values() if isinstance(values, dict) else values:
            yield from _records_of(inner, name)


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


def _of_index(name: str, *uses: Callable[[Snapshot], object]) -> Parser:
    def read(folder: Path) -> None:
        sign(folder, name)
        opened(folder, *uses)

    return Parser(f"i/{name}", make_index, read, IndexStoreError, overwritten)


PARSERS: dict[str, Parser] = {
    "jsonl": text("c.jsonl", JSONL, read_all),
    "csv": text("c.csv", CSV, read_all),
    "tsv": text("c.tsv", CSV.replace(b",", b"\t"), read_all),
    "text": text("c.txt", TEXT, read_all),
    "markdown": text("c.md", MARKDOWN, read_all),
    "html": text("c.html", HTML, read_all),
    "notebook": text("c.ipynb", NOTEBOOK, read_all),
    "zstd": text("c.jsonl.zst", zstd(JSONL), read_all),
    "qrels": text("qrels/test.tsv", QRELS, lambda path: read_qrels(path.parent.parent)),
    "TREC qrels": text("qrels/test.tsv", TREC_QRELS, lambda path: read_qrels(path.parent.parent)),
    "run": text("run.trec", RUN, read_run),
    "JSON run": text("run.json", b'{"q1": {"d1": 1.5, "a b": 1}, "q2": {}}', read_run),
    "pairs": text("pairs.tsv", PAIRS, read_pairs),
    "queries": text("queries.jsonl", QUERIES, read_queries),
    **{kind: _read_columnar(f"c.{kind}") for kind in ("parquet", "arrow", "ipc", "feather")},
    "manifest": Parser(
        f"i/{NAME}",
        partial(make_index, n_segments=2),
        lambda folder: opened(folder, *EVERY_USE),
        (IndexStoreError, ConfigError),  # of a language without a stemmer
        mutated_manifest,
    ),
    "docs": _of_index("seg/000000.docs.arrow", *EVERY_USE),
    "vectors": _of_index("seg/000000.vec.npy", search),
    "ids": _of_index("seg/000000.ids.npy", look_up),
    "terms": _of_index("lex/000001.terms.npy", search_words),
    "postings": _of_index("lex/000001.pairs.npy", search_words),
    "lengths": _of_index("lex/000001.lengths.npy", search_words),
    "ids_file": text("ids.txt", IDS, lambda path: read_ids(BytesIO(path.read_bytes()), str(path))),
}
