"""Create, open, classify, commit, search, fetch: the life of an index without faults."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sbert_search.errors import (
    CorruptIndex,
    IndexLocked,
    IndexStoreError,
    NotAnIndex,
    QueryError,
)
from sbert_search.index.storage import rows as passages
from sbert_search.index.storage.manifest import (
    VERSION,
    BuildCursor,
    ColumnType,
    Manifest,
    SelfCheck,
    VectorSettings,
)
from sbert_search.index.storage.segments import IdBatch
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from sbert_search.index.writer import Outcome
from sbert_search.records import Document, RowCounts
from tests.index.batches import make_batch, some_documents, some_vectors

SETTINGS = VectorSettings(dim=8)


def made(path: Path, n_docs: int = 20, **settings: object) -> IndexStore:
    vectors = VectorSettings(dim=8, **settings)  # type: ignore[arg-type]
    store = IndexStore.create(path, Manifest.new(vectors, {"year": "int64"}))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(n_docs), some_vectors(n_docs)))
    return store


def test_what_was_committed_is_found_and_fetched_after_reopening(tmp_path: Path) -> None:
    made(tmp_path / "i")
    snapshot = IndexStore.open(tmp_path / "i").snapshot
    assert (snapshot.n_docs, snapshot.n_rows) == (20, 20)
    scores, rows = snapshot.search(some_vectors(20), 1)
    assert rows[:, 0].tolist() == list(range(20))
    assert np.allclose(scores, 1.0)
    passage = snapshot.fetch([7])[0]
    assert passage.document == some_documents(20)[7]
    assert (passage.row, passage.doc_row, passage.chunk) == (7, 7, 0)
    assert snapshot.lookup(["d3", "nobody", "d19"]).tolist() == [3, -1, 19]


def test_ids_are_read_over_segments_in_the_order_asked(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(SETTINGS))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(3), some_vectors(6), chunks=[1, 3, 2]))
        writer.commit(make_batch(some_documents(2, "e"), some_vectors(2)))
    rows = np.array([7, 0, 4, 2, 3, 6])
    expected = [passage.document.doc_id for passage in store.snapshot.fetch(rows)]
    assert store.snapshot.doc_ids(rows) == expected
    with pytest.raises(ValueError, match="holds no row 8"):
        store.snapshot.doc_ids(np.array([1, 8]))


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_search_is_brute_force_over_all_segments(tmp_path: Path, metric: str, dtype: str) -> None:
    settings = VectorSettings(dim=8, metric=metric, dtype=dtype)  # type: ignore[arg-type]
    store = IndexStore.create(tmp_path / "i", Manifest.new(settings))
    vectors = some_vectors(300)
    with store.writer() as writer:
        for i in range(0, 300, 100):
            writer.commit(make_batch(some_documents(100, f"{i}-"), vectors[i : i + 100]))
    queries = some_vectors(5, seed=1)
    if metric == "cosine":
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    stored = vectors.astype(dtype).astype(np.float64)
    if metric == "euclidean":
        expected = -np.linalg.norm(queries[:, None] - stored[None], axis=2)
    else:
        expected = queries @ stored.T
    scores, rows = store.snapshot.search(queries, 10)
    assert (rows == np.argsort(-expected, axis=1)[:, :10]).all()
    assert np.allclose(scores, -np.sort(-expected, axis=1)[:, :10], atol=1e-6)


def test_equal_scores_go_to_the_lower_row_and_k_may_exceed_the_rows(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(SETTINGS))
    same = np.repeat(some_vectors(1), 600, axis=0)
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(400), same[:400]))
        writer.commit(make_batch(some_documents(200, "e"), same[400:]))
    _, rows = store.snapshot.search(some_vectors(3, seed=3), 700)
    assert rows[:, :600].tolist() == [list(range(600))] * 3
    assert (rows[:, 600:] == -1).all()
    assert store.snapshot.search(some_vectors(3, seed=3), 7)[1].tolist() == [list(range(7))] * 3


def test_classify_sees_committed_and_pending_documents(tmp_path: Path) -> None:
    store = made(tmp_path / "i", 2)
    old, changed = some_documents(2)[0], Document("d0", "other")
    new = Document("n", "new")
    with store.writer() as writer:
        assert writer.classify([old, changed, new, new]) == [
            Outcome.DUPLICATE,
            Outcome.CONFLICT,
            Outcome.NEW,
            Outcome.DUPLICATE,
        ]
        assert writer.classify([changed, new], "upsert") == [Outcome.REPLACE, Outcome.DUPLICATE]
        writer.commit(make_batch([new, changed], some_vectors(2, seed=5)))
        assert writer.classify([changed, old], "upsert") == [Outcome.DUPLICATE, Outcome.REPLACE]
    moved = Document("n", "new", source="elsewhere:7")
    with store.writer() as writer:
        assert writer.classify([moved]) == [Outcome.DUPLICATE]


def test_a_commit_keeps_in_mind_the_versions_that_are_still_in_flight(tmp_path: Path) -> None:
    store = made(tmp_path / "i", 1)
    one, two = Document("k", "one"), Document("k", "two")
    with store.writer() as writer:
        for version in (one, two, one):
            (outcome,) = writer.classify([version], "upsert")
            assert outcome in (Outcome.NEW, Outcome.REPLACE)
        writer.commit(make_batch([one], some_vectors(1)))
        assert writer.classify([one], "upsert") == [Outcome.DUPLICATE]
        assert writer.classify([two], "add") == [Outcome.CONFLICT]
        writer.commit(make_batch([two], some_vectors(1)))
        assert writer.classify([two], "upsert") == [Outcome.REPLACE]
        writer.commit(make_batch([one], some_vectors(1)))
        writer.commit(make_batch([two], some_vectors(1)))
        assert writer.classify([two], "upsert") == [Outcome.DUPLICATE]
    (found,) = store.snapshot.fetch(store.snapshot.lookup(["k"]))
    assert found.document.text == "two"


def test_upsert_replaces_every_passage_and_delete_removes_them(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(SETTINGS))
    vectors = some_vectors(5)
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(2), vectors, [3, 2]))
        assert store.snapshot.doc_of(np.arange(5)).tolist() == [0, 0, 0, 3, 3]
        writer.commit(make_batch([Document("d0", "again")], some_vectors(1, seed=9)))
        assert (store.snapshot.n_docs, store.snapshot.n_rows) == (2, 3)
        assert sorted(store.snapshot.search(vectors[:1], 9)[1][0, :3].tolist()) == [3, 4, 5]
        assert writer.delete(["d1", "absent"]) == ["absent"]
    assert (store.snapshot.n_docs, store.snapshot.n_rows) == (1, 1)
    assert store.snapshot.fetch([5])[0].document.text == "again"
    assert [document.doc_id for document in store.snapshot.iter_documents()] == ["d0"]


def test_the_last_of_equal_ids_in_one_batch_stays(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(SETTINGS))
    twice = [Document("a", "1"), Document("b", "2"), Document("a", "3")]
    with store.writer() as writer:
        writer.commit(make_batch(twice, some_vectors(4), [2, 1, 1]))
    documents = [passage.document.text for passage in store.snapshot.fetch([0, 1])]
    assert documents == ["2", "3"]


def test_build_cursor_and_identity_survive(tmp_path: Path) -> None:
    check = SelfCheck.of(["a", "b"], some_vectors(2))
    settings = VectorSettings(
        dim=8, identity={"name": "m", "prompts": {"q": "x"}}, self_check=check
    )
    store = IndexStore.create(tmp_path / "i", Manifest.new(settings))
    cursor = BuildCursor(source_sha256="ab", rows=3, counts=RowCounts(indexed=1, rejected=2))
    with store.writer() as writer:
        writer.commit(None, cursor=cursor)
    manifest = IndexStore.open(tmp_path / "i").snapshot.manifest
    assert manifest.build == cursor
    assert manifest.settings == settings
    assert (manifest.settings.self_check.vectors == some_vectors(2)).all()


def test_columns_widen_and_segments_may_lack_them(tmp_path: Path) -> None:
    store = made(tmp_path / "i", 1)
    with store.writer() as writer:
        writer.add_columns({"year": "float64", "lang": "string"})
        document = Document("n", "t", metadata={"year": 1.5, "lang": "en"})
        writer.commit(make_batch([document], some_vectors(1)))
        with pytest.raises(IndexStoreError, match="'year' is float64 in the index and string"):
            writer.add_columns({"year": "string"})
        with pytest.raises(IndexStoreError, match="Document 'm' has year = 'x'; this column"):
            writer.commit(make_batch([Document("m", "t", metadata={"year": "x"})], some_vectors(1)))
    assert dict(store.snapshot.columns) == {"year": "float64", "lang": "string"}
    assert store.snapshot.fetch([1])[0].document.metadata == {"year": 1.5, "lang": "en"}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused_by_document(tmp_path: Path, bad: float) -> None:
    store = made(tmp_path / "i")
    vectors = some_vectors(3)
    vectors[1, 2] = bad
    before = sorted((tmp_path / "i").rglob("*"))
    with store.writer() as writer, pytest.raises(IndexStoreError, match=r"'e1' \(f:1\) is not fin"):
        writer.commit(make_batch(some_documents(3, "e"), vectors))
    assert store.snapshot.n_docs == 20
    assert sorted((tmp_path / "i").rglob("*")) == before


def test_float16_overflow_is_refused(tmp_path: Path) -> None:
    store = IndexStore.create(
        tmp_path / "i", Manifest.new(VectorSettings(dim=8, metric="dot", dtype="float16"))
    )
    with (
        store.writer() as writer,
        pytest.raises(IndexStoreError, match="finite as float16: a component is too"),
    ):
        writer.commit(make_batch(some_documents(1), np.full((1, 8), 1e6, np.float32)))


def test_bad_queries_are_refused_by_name(tmp_path: Path) -> None:
    snapshot = made(tmp_path / "i").snapshot
    with pytest.raises(QueryError, match="k is 0"):
        snapshot.search(some_vectors(1), 0)
    with pytest.raises(QueryError, match="vectors of 8 dimensions"):
        snapshot.search(some_vectors(1, 9), 1)
    with pytest.raises(QueryError, match="Query 1, counted from 0, has a vector that is not"):
        snapshot.search(np.array([[1.0] * 8, [np.nan] * 8], np.float32), 1)
    with pytest.raises(ValueError, match="holds no row 99"):
        snapshot.fetch([99])


def test_folders_that_are_no_index_or_not_free_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndex, match="it has no MANIFEST"):
        IndexStore.open(tmp_path)
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(IndexStoreError, match=r"is not empty \(it holds 'mine.txt'\)"):
        IndexStore.create(tmp_path, Manifest.new(SETTINGS))
    made(tmp_path / "i")
    with pytest.raises(IndexStoreError, match="already holds an index"):
        IndexStore.create(tmp_path / "i", Manifest.new(SETTINGS))


def test_windows_is_refused_for_writing_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(tmp_path / "i")
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(IndexStoreError, match="Windows is not supported for writing"):
        IndexStore.create(tmp_path / "j", Manifest.new(SETTINGS))
    with (
        pytest.raises(IndexStoreError, match="Windows is not supported for writing"),
        store.writer(),
    ):
        pass


def test_a_file_system_without_locks_is_refused_when_an_index_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda fd, operation: None)
    with pytest.raises(IndexStoreError, match="this file system ignores locks"):
        IndexStore.create(tmp_path / "i", Manifest.new(SETTINGS))


def test_a_second_writer_is_refused_by_pid_while_readers_go_on(tmp_path: Path) -> None:
    store = made(tmp_path / "i")
    code = (
        "from sbert_search.index.store import IndexStore; from sbert_search.errors import *\n"
        f"store = IndexStore.open({str(tmp_path / 'i')!r})\n"
        "try:\n    store.writer().__enter__()\n"
        "except IndexLocked as error: print(error, store.snapshot.n_docs)\n"
    )
    with store.writer():
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    assert f"is being written by process {os.getpid()} since 20" in done.stdout
    assert done.stdout.endswith(" 20\n")
    with store.writer(), pytest.raises(IndexLocked), store.writer():
        pass


def change_manifest(path: Path, changes: dict[str, object]) -> None:
    manifest = path / "MANIFEST.json"
    values = json.loads(manifest.read_bytes().partition(b"\n")[2]) | changes
    body = json.dumps(values).encode()
    manifest.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def test_a_copy_without_its_empty_folders_can_be_changed(tmp_path: Path) -> None:
    """Programs that copy only files, such as git, leave them out."""
    made(tmp_path / "i")
    (tmp_path / "i" / "del").rmdir()
    assert check(tmp_path / "i").problems == ()
    with IndexStore.open(tmp_path / "i").writer() as writer:
        writer.delete(["d0"])
    assert IndexStore.open(tmp_path / "i").snapshot.n_docs == 19


@pytest.mark.parametrize("version", range(1, VERSION))
def test_an_index_of_an_earlier_version_is_refused_with_the_remedy(
    tmp_path: Path, version: int
) -> None:
    made(tmp_path / "i")
    change_manifest(tmp_path / "i", {"version": version, "field of that version": 1})
    told = (
        rf"Export it with the version that made it \(`sbert-search index export`\), and build it "
        rf"again .* has format version {version}, and this version reads {VERSION}\."
    )
    for use in (IndexStore.open, check):
        with pytest.raises(IndexStoreError, match=told) as refused:
            use(tmp_path / "i")
        assert not isinstance(refused.value, CorruptIndex)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"version": VERSION + 1},
            f"has format version {VERSION + 1}, and this version reads {VERSION}.",
        ),
        ({"shards": 3}, "has fields that this version does not know: Unknown setting 'shards'"),
        ({"vectors": {"v1": {"dim": 8, "codec": "x"}}}, "Unknown setting 'vectors.v1.codec'"),
    ],
)
def test_an_index_of_a_newer_version_is_called_that_and_not_corrupt(
    tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    made(tmp_path / "i")
    change_manifest(tmp_path / "i", changes)
    with pytest.raises(IndexStoreError, match="A newer version of sbert-search made") as refused:
        IndexStore.open(tmp_path / "i")
    assert told in str(refused.value)
    assert not isinstance(refused.value, CorruptIndex)


def test_a_reader_keeps_its_state_until_it_refreshes(tmp_path: Path) -> None:
    store = made(tmp_path / "i")
    reader = IndexStore.open(tmp_path / "i")
    assert not reader.refresh()
    with store.writer() as writer:
        writer.delete(["d0"])
    assert reader.snapshot.n_docs == 20
    assert reader.refresh()
    assert reader.snapshot.n_docs == 19


def test_ids_are_read_from_buffers_longer_than_their_column() -> None:
    starts = pa.py_buffer(np.array([0, 0, 1, 3], np.int64).tobytes() + b"odd")
    column = pa.Array.from_buffers(pa.large_string(), 3, [None, starts, pa.py_buffer(b"abcd")])
    column.validate(full=True)
    names = IdBatch.of(column[1:])
    texts = [bytes(names.text[names.starts[n] : names.starts[n + 1]]) for n in range(2)]
    assert texts == [b"a", b"bc"]


def test_long_rows_of_several_segments_are_converted_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(SETTINGS))
    with store.writer() as writer:
        for n in range(4):
            document = Document(doc_id=f"d{n}", text="word " * 500)
            writer.commit(make_batch([document], some_vectors(1)))
    sizes, concat = [], pa.concat_batches

    def concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        sizes.append(len(batches))
        return concat(batches)

    monkeypatch.setattr(passages, "READ_BYTES", 6000)  # two rows of 2,500 letters
    monkeypatch.setattr(pa, "concat_batches", concatenated)
    found = store.snapshot.fetch([3, 0, 2, 1])
    assert [each.document.doc_id for each in found] == ["d3", "d0", "d2", "d1"]
    assert sizes == [2, 2]


def test_the_bound_of_a_batch_is_at_least_the_bytes_of_each_of_its_rows(tmp_path: Path) -> None:
    columns: dict[str, ColumnType] = {"year": "int64", "author": "string", "tags": "list[string]"}
    documents = [
        Document(f"d{n}", "word " * n, metadata={"year": n, "author": "X" * n, "tags": ["é"] * n})
        for n in range(30)
    ]
    store = IndexStore.create(
        tmp_path / "index", Manifest.new(VectorSettings(dim=2, metric="dot"), {})
    )
    with store.writer() as writer:
        writer.add_columns(columns)
        writer.commit(make_batch(documents, some_vectors(30, 2)))
    (segment,) = store.snapshot.segments
    largest = max(row.nbytes for row in segment.rows_at(range(30)))
    assert largest <= segment.max_row_bytes(0) < segment.batch(0).nbytes


def test_documents_of_segments_with_other_columns_are_fetched_in_the_order_asked(
    tmp_path: Path,
) -> None:
    store = IndexStore.create(
        tmp_path / "index", Manifest.new(VectorSettings(dim=2, metric="dot"), {})
    )
    columns: list[dict[str, ColumnType]] = [{}, {"year": "int64"}, {"author": "string"}]
    values: list[dict[str, int | str]] = [{}, {"year": 1900}, {"author": "X"}]
    for name, column, metadata in zip("abc", columns, values, strict=True):
        with store.writer() as writer:
            writer.add_columns(column)
            writer.commit(make_batch([Document(name, name, metadata=metadata)], some_vectors(1, 2)))
    found = [passage.document for passage in store.snapshot.fetch([2, 0, 1, 2])]
    assert [document.doc_id for document in found] == ["c", "a", "b", "c"]
    assert [document.metadata for document in found] == [
        {"author": "X"},
        {},
        {"year": 1900},
        {"author": "X"},
    ]
