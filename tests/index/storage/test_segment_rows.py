"""The small parts of the store: specs, npy headers, id tables, the manifest's own checks."""

from __future__ import annotations

import dataclasses
import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.config import from_mapping, to_mapping
from sbert_search.errors import ConfigError, CorruptIndex
from sbert_search.index.dense.exact import TopK, scan
from sbert_search.index.dense.query_plan import Selection
from sbert_search.index.settings import IndexSpec
from sbert_search.index.storage import ids
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage import segments as npy
from sbert_search.index.storage.manifest import (
    FileRecord,
    Manifest,
    SegmentRecord,
    VectorFiles,
    VectorSettings,
)
from sbert_search.index.store import IndexStore
from sbert_search.records import Document
from tests.index.batches import make_batch, some_documents, some_vectors


@pytest.mark.parametrize(
    "factory",
    [
        "Flat",
        "SQ8",
        "SQfp16",
        "HNSW32",
        "HNSW32,SQ8",
        "HNSW32,SQbf16",
        "IVF4096,Flat",
        "IVF4096,PQ48",
        "IVF1024,SQ8",
        "PCAR64,SQ8",
        "OPQ48_192,IVF1024,PQ48",
        "IVF1024_HNSW32,PQ48x4fs",
    ],
)
def test_factory_strings_are_known_and_faiss_agrees(factory: str) -> None:
    import faiss

    spec = IndexSpec(factory=factory)
    assert faiss.index_factory(192, factory).d == 192
    assert from_mapping(IndexSpec, to_mapping(spec)) == spec


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("Falt", "'Falt' is unknown. Use Flat"),
        ("IVF4096", "add how the lists store vectors, such as IVF4096,Flat"),
        ("OPQ16", "must name one index"),
        ("", "'' is unknown"),
        ("IVF0,Flat", "'IVF0' is unknown"),
        ("HNSW32,Flat,Flat,Flat", "must name one index"),
    ],
)
def test_bad_factory_strings_are_refused_by_name(factory: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        IndexSpec(factory=factory)


def test_bad_search_parameters_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"index.nprobe is 0; it must be from 1"):
        IndexSpec(nprobe=0)
    with pytest.raises(ConfigError, match=r"nprobe is 2\.5; it must be of type int"):
        IndexSpec(nprobe=2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["<f4", "<f2", "<i8", "<u8"])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (1, 1)])
def test_numpy_reads_what_we_write_and_we_read_what_numpy_writes(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    array = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    npy.write(tmp_path / "a.npy", array)
    assert (np.load(tmp_path / "a.npy", allow_pickle=False) == array).all()
    theirs = io.BytesIO()
    np.save(theirs, array)
    assert (npy.read(memoryview(theirs.getvalue()), "a", dtype, shape) == array).all()
    with pytest.raises(CorruptIndex, match="an npy header"):
        npy.read(memoryview(theirs.getvalue()), "a", dtype, (*shape, 1))


def test_ids_with_equal_hashes_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "hash_ids", lambda names: np.full(len(names), 7, np.uint64))
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8)))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(5), some_vectors(5)))
        writer.commit(make_batch(some_documents(5, "e"), some_vectors(5)))
        writer.delete(["d2", "e0"])
        writer.compact()
    names = ["e4", "d2", "d0", "nobody", "e0"]
    assert store.snapshot.lookup(names).tolist() == [9, -1, 0, -1, -1]


def test_content_is_title_text_and_metadata_and_nothing_else() -> None:
    document = Document("a", "text", "title", {"n": 3, "none": None}, "file:1")
    same = Document("b", "text", "title", {"n": 3.0}, "file:2")
    assert ids.hash_content(document) == ids.hash_content(same)
    for other in (
        Document("a", "title", "text"),
        Document("a", "text", "title", {"n": "3"}),
        Document("a", "text", "title", {"n": True}),
        Document("a", "text", "title", {"m": 3}),
    ):
        assert ids.hash_content(other) != ids.hash_content(document)


@pytest.mark.parametrize("year", [1, 1600, 2024, 2243, 9999])
def test_a_microsecond_is_another_content_in_every_year(year: int) -> None:
    start = datetime(year, 6, 30, 23, 59, 59, 999_000, tzinfo=UTC)
    times = [start + timedelta(microseconds=n) for n in range(50)]
    assert len({ids.hash_content(Document("a", "text", metadata={"t": t})) for t in times}) == 50


@pytest.mark.parametrize("n_rows", [0, 1, 7, 5000])
@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("n_queries", [1, 9])
@pytest.mark.parametrize("block", [100, 10_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scan_equals_a_stable_sort_whatever_the_blocks(
    n_rows: int,
    k: int,
    n_queries: int,
    block: int,
    dtype: type[np.floating[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sbert_search.index.dense import exact as module

    monkeypatch.setattr(module, "BLOCK_SCORES", block * n_queries)
    monkeypatch.setattr(module, "DOT_ELEMENTS", 6 * 30)
    rng = np.random.default_rng(0)
    vectors = rng.integers(-2, 3, (n_rows, 6)).astype(dtype)
    queries = rng.integers(-2, 3, (n_queries, 6)).astype(np.float32)
    wanted = rng.random(n_rows) < 0.7
    top = TopK.empty(n_queries, k)
    rows = np.arange(n_rows) * 3 + 1
    scan(queries, vectors, top, rows, metric="dot", max_norm=5.0, selection=Selection(wanted))
    scores = np.where(wanted, queries @ vectors.T, -np.inf)
    best = np.argsort(-scores, axis=1, kind="stable")[:, : min(k, int(wanted.sum()))]
    assert (top.rows[:, : best.shape[1]] == rows[best]).all()
    assert (top.rows[:, best.shape[1] :] == -1).all()


def segment(number: int, start: int, end: int) -> SegmentRecord:
    names = [f"seg/{number:06d}.{kind}" for kind in ("docs.arrow", "vec.npy", "ids.npy")]
    docs, vectors, table = (FileRecord(name=n, size_bytes=1, xxh3_128="0") for n in names)
    return SegmentRecord(
        row_start=start,
        row_end=end,
        n_rows=end - start,
        n_docs=1,
        columns={},
        docs=docs,
        vectors={"v1": VectorFiles(file=vectors, max_norm=1.0)},
        ids=table,
    )


def test_a_manifest_with_the_right_hash_and_a_wrong_content_is_refused() -> None:
    empty = Manifest.new(VectorSettings(dim=8), next_row=9)
    good = dataclasses.replace(empty, segments=(segment(1, 0, 9),))
    assert manifests.decode(manifests.encode(good)) == good
    text = manifests.encode(good).partition(b"\n")[2]
    for old, new, reason in (
        (b"seg/000001.vec.npy", b"../000001.vec.npy", "is not a file name of an index"),
        (b"seg/000001.vec.npy", b"/seg/00001.vec.npy", "is not a file name of an index"),
        (b'"next_row":9', b'"next_row":8', "below the rows in use"),
        (b'"n_docs":1', b'"n_docs":0', "are inconsistent"),
        (b'"dim":8', b'"dim":0', "dim is 0"),
        (b'"dim":8', b'"dim":"8"', "must be of type int"),
        (b'"segments":[', b'"segments":[[],', "must be"),
        (b'"active":"v1"', b'"active":"v2"', "no set of vectors 'v2'"),
        (b'"vectors":{"v1":{"ann"', b'"vectors":{"v2":{"ann"', "sets of seg/000001.docs.arrow"),
        (b'"postings":{},"row_', b'"postings":{"x":null},"row_', "must be"),
        (
            b'"query_models":{}',
            b'"query_models":{"fast":{"identity":{},"retention":0.9,"vectors":"v3"}}',
            "no set of vectors 'v3'",
        ),
        (b'"format":"sbert', b'"format":"other', "no known format"),
        (text, b"[" * 100_000, "a manifest of an index"),
    ):
        changed = text.replace(old, new)
        assert changed != text
        with pytest.raises(CorruptIndex, match=reason) as refused:
            manifests.decode(signed(changed))
        assert refused.value.file == "MANIFEST.json"
    with pytest.raises(ConfigError, match="out of order"):
        dataclasses.replace(good, segments=(segment(1, 4, 9), segment(2, 0, 4)))


def signed(body: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body
