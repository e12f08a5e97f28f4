"""Merging, FAISS files, verification, repair and snapshots keep what an index holds."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from sbert_search.base import files, memory
from sbert_search.base.folders import Place
from sbert_search.errors import ConfigError, CorruptIndex, IndexStoreError
from sbert_search.index import settings as spec
from sbert_search.index.dense import faiss_build, faiss_runtime
from sbert_search.index.norms import Vectors
from sbert_search.index.settings import IndexSpec
from sbert_search.index.storage.manifest import BuildCursor, FileRecord, Manifest, VectorSettings
from sbert_search.index.storage.segment_writer import SegmentPart
from sbert_search.index.storage.segments import Segment
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import compaction, merge_policy
from sbert_search.index.upkeep.check import check
from sbert_search.records import Document
from tests.index.batches import make_batch, some_documents, some_vectors
from tests.limits import memory_limited

pytestmark = pytest.mark.usefixtures("unpacked")


def scattered(path: Path, spec: IndexSpec | None = None) -> IndexStore:
    """Six segments of documents with 1 to 3 passages, a third of them deleted or replaced."""
    settings = VectorSettings(dim=8, spec=spec or IndexSpec())
    store = IndexStore.create(path, Manifest.new(settings, {"year": "int64"}))
    with store.writer() as writer:
        for i in range(6):
            chunks = [1 + (i + n) % 3 for n in range(1500)]
            vectors = some_vectors(sum(chunks), seed=i)
            writer.commit(make_batch(some_documents(1500, f"{i}-"), vectors, chunks))
        writer.delete([f"{i}-{n}" for i in range(6) for n in range(0, 1500, 5)])
        writer.add_columns({"lang": "string"})
        again = [Document(f"3-{n}", "new", metadata={"lang": "de"}) for n in range(1, 1500, 5)]
        writer.commit(make_batch(again, some_vectors(len(again), seed=7)))
    return store


def test_compaction_keeps_rows_results_and_documents(tmp_path: Path) -> None:
    store = scattered(tmp_path / "i")
    queries = some_vectors(20, seed=11)
    before = store.snapshot
    scores, rows = before.search(queries, 50)
    documents = list(before.iter_documents())
    assert merge_policy.advice(before) == "4,200 of 18,300 rows are dead"
    with store.writer() as writer:
        writer.compact()
    after = store.snapshot
    assert len(after.segments) == 1
    assert (after.n_docs, after.n_rows) == (before.n_docs, before.n_rows)
    assert after.manifest.n_dead_rows == 0
    assert merge_policy.advice(after) == ""
    assert (after.search(queries, 50)[1] == rows).all()
    assert (after.search(queries, 50)[0] == scores).all()
    assert list(after.iter_documents()) == documents
    assert after.fetch(rows[0]) == before.fetch(rows[0])
    names = [document.doc_id for document in documents]
    assert (after.lookup(names) == before.lookup(names)).all()
    assert after.filter_mask("lang = 'de'").n_docs == 300
    assert check(store.path).problems == ()
    assert sorted(p.name for p in (tmp_path / "i" / "seg").iterdir())[0].startswith("000009")
    with store.writer() as writer:
        writer.compact()
    assert store.snapshot is after or store.snapshot.manifest == after.manifest


def test_a_merge_holds_no_vectors_of_a_part_while_it_reads_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[NDArray[np.floating]]] = []
    held: list[int] = []
    read = compaction._pieces

    def part_of(docs: pa.Table, vectors: NDArray[np.floating], **more: Any) -> SegmentPart:
        made.append(weakref.ref(vectors))
        return SegmentPart(docs, vectors, **more)

    def pieces(segment: Segment) -> Iterator[tuple[int, pa.RecordBatch]]:
        for piece in read(segment):
            held.append(sum(vectors() is not None for vectors in made))
            yield piece

    store = scattered(tmp_path / "i")
    monkeypatch.setattr(compaction, "PIECE_BYTES", 4096)
    monkeypatch.setattr(compaction, "SegmentPart", part_of)
    monkeypatch.setattr(compaction, "_pieces", pieces)
    with store.writer() as writer:
        writer.compact()
    assert len(made) > 12
    assert not any(held)


def test_merges_stop_at_the_segment_size_and_skip_full_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_policy, "SEGMENT_ROWS", 4000)
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8)))
    with store.writer() as writer:
        for i in range(10):
            writer.commit(make_batch(some_documents(1000, f"{i}-"), some_vectors(1000, seed=i)))
        writer.compact()
    assert [s.n_rows for s in store.snapshot.manifest.segments] == [4000, 4000, 2000]
    full = [s.docs.name for s in store.snapshot.manifest.segments[:2]]
    with store.writer() as writer:
        writer.delete(["9-0"])
        writer.compact()
    assert [s.docs.name for s in store.snapshot.manifest.segments[:2]] == full
    assert store.snapshot.n_rows == 9999


def test_a_long_build_merges_on_its_way_and_ends_like_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_policy, "MIN_REMOVED", 4)
    monkeypatch.setattr(merge_policy, "SEGMENT_ROWS", 70)
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8)))
    with store.writer() as writer:
        for i in range(20):
            cursor = BuildCursor(source_sha256="s", rows=i * 10)
            batch = make_batch(some_documents(10, f"{i}-"), some_vectors(10, seed=i))
            writer.commit(batch, cursor=cursor)
            assert len(store.snapshot.segments) <= 3 + 5
        writer.finish_build()
    manifest = store.snapshot.manifest
    assert [s.n_rows for s in manifest.segments] == [70, 70, 60]
    assert manifest.build == BuildCursor(source_sha256="s", rows=190, finished=True)


def test_an_emptied_index_compacts_to_nothing_and_never_reuses_rows(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8)))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(3), some_vectors(3)))
        writer.delete(["d0", "d1", "d2"])
        writer.compact()
        assert store.snapshot.segments == []
        assert (store.snapshot.search(some_vectors(1), 2)[1] == -1).all()
        writer.commit(make_batch(some_documents(1), some_vectors(1)))
    assert store.snapshot.lookup(["d0"]).tolist() == [3]


@pytest.fixture
def small_ann(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (merge_policy, spec):
        monkeypatch.setattr(module, "MIN_ANN_ROWS", 500, raising=True)


@pytest.mark.thorough
@pytest.mark.usefixtures("small_ann")
@pytest.mark.parametrize(
    "factory",
    [
        "HNSW16",
        "HNSW16,SQbf16",
        "IVF16,Flat",
        "IVF16,SQ8",
        "IVF16,PQ8x4",
        "PQ8x4",
        "SQ8",
        "SQfp16",
        "RR8,IVF16,SQ8",
        "RR8,PQ8x4",
    ],
)
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_faiss_indexes_find_what_the_exact_scan_finds(
    tmp_path: Path, factory: str, metric: str
) -> None:
    index_spec = IndexSpec(factory=factory, nprobe=16, ef_search=200)
    settings = VectorSettings(dim=8, spec=index_spec, metric=metric)  # type: ignore[arg-type]
    store = IndexStore.create(tmp_path / "i", Manifest.new(settings))
    queries = some_vectors(20, seed=11)
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(3_000), some_vectors(3_000, seed=1)))
        exact_scores, exact_rows = store.snapshot.search(queries, 10)
        writer.finish_build()
    assert store.snapshot.manifest.segments[0].vectors["v1"].ann is not None
    scores, rows = IndexStore.open(store.path).snapshot.search(queries, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, exact_rows, strict=True)])
    assert recall > 0.85
    same = rows == exact_rows
    assert (scores[same] == exact_scores[same]).all()
    with store.writer() as writer:
        writer.delete([f"d{row}" for row in rows[:, 0]])
    left = store.snapshot.search(queries, 10)[1]
    assert not set(rows[:, 0]) & set(left.ravel().tolist())
    assert (left >= 0).all()


@pytest.mark.thorough
@pytest.mark.usefixtures("small_ann")
def test_a_damaged_or_missing_faiss_file_costs_speed_and_is_made_again(tmp_path: Path) -> None:
    store = scattered(tmp_path / "i", IndexSpec(factory="HNSW16"))
    with store.writer() as writer:
        writer.compact()
    expected = store.snapshot.search(some_vectors(5, seed=2), 5)[1]
    record = store.snapshot.manifest.segments[0].vectors["v1"].ann
    assert record is not None
    file = store.path / record.name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    file.write_bytes(data)
    reopened = IndexStore.open(store.path)
    with pytest.warns(UserWarning, match="Searching without ann/.* is corrupt"):
        assert (reopened.snapshot.search(some_vectors(5, seed=2), 5)[1] == expected).all()
    assert [problem.file for problem in check(store.path).problems] == [record.name]
    file.unlink()
    with pytest.warns(UserWarning, match="make it again with `sbert-search index repair /"):
        reopened = IndexStore.open(store.path)
    with reopened.writer() as writer:
        assert writer.repair() == [record.name]
    assert check(store.path).problems == ()
    assert IndexStore.open(store.path).snapshot.anns[0] is not None


@pytest.mark.usefixtures("small_ann")
def test_merging_on_the_way_leaves_a_segment_with_a_faiss_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_policy, "MIN_REMOVED", 3)
    settings = VectorSettings(dim=8, spec=IndexSpec(factory="HNSW8"))
    store = IndexStore.create(tmp_path / "i", Manifest.new(settings))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(600), some_vectors(600)))
        writer.finish_build()
        writer.delete(["d3"])
        for i in range(4):
            writer.commit(make_batch(some_documents(5, f"{i}-"), some_vectors(5, seed=i)))
    big, small = store.snapshot.manifest.segments
    assert (big.n_rows, big.vectors["v1"].ann is None, small.n_rows) == (600, False, 20)
    assert (store.snapshot.n_rows, store.snapshot.lookup(["d3"])[0]) == (619, -1)
    assert check(store.path).problems == ()


@pytest.mark.usefixtures("small_ann")
def test_too_few_vectors_to_train_on_are_scanned_exactly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = IndexStore.create(
        tmp_path / "i", Manifest.new(VectorSettings(dim=8, spec=IndexSpec(factory="IVF64,Flat")))
    )
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(600), some_vectors(600)))
        writer.finish_build()
    assert "IVF64,Flat needs at least 2,496 training vectors and there are 600" in (
        capsys.readouterr().err
    )
    assert store.snapshot.manifest.segments[0].vectors["v1"].ann is None
    assert store.snapshot.search(some_vectors(600), 1)[1].ravel().tolist() == list(range(600))


def test_without_faiss_only_flat_indexes_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match="FAISS is not installed; use the index spec Flat, or run"
    ):
        IndexStore.create(
            tmp_path / "i", Manifest.new(VectorSettings(dim=8, spec=IndexSpec(factory="HNSW32")))
        )


def test_repair_removes_what_nobody_names(tmp_path: Path) -> None:
    store = scattered(tmp_path / "i")
    (store.path / "seg/000099.vec.npy").write_bytes(b"left by a killed writer")
    assert check(store.path).strays == ("seg/000099.vec.npy",)
    with store.writer() as writer:  # younger than ten minutes: the next writer leaves it
        assert (store.path / "seg/000099.vec.npy").exists()
        assert writer.repair() == ["seg/000099.vec.npy"]
    assert check(store.path).strays == ()


def test_the_next_writer_removes_what_nobody_has_named_for_ten_minutes(tmp_path: Path) -> None:
    store = scattered(tmp_path / "i")
    for name, age_s in (("ann/000098.faiss", 700), ("del/000099.npy", 500), ("seg/mine", 700)):
        (store.path / name).write_bytes(b"x")
        os.utime(store.path / name, (time.time() - age_s,) * 2)
    with store.writer():
        pass
    assert not (store.path / "ann/000098.faiss").exists()
    assert (store.path / "del/000099.npy").exists()
    assert (store.path / "seg/mine").exists()  # no name of ours


def test_a_snapshot_is_an_index_that_later_writes_do_not_touch(tmp_path: Path) -> None:
    store = scattered(tmp_path / "i")
    with store.writer() as writer:
        writer.backup_to(tmp_path / "copy")
        n_docs = store.snapshot.n_docs
        writer.delete(["0-1"])
        writer.compact()
        with pytest.raises(IndexStoreError, match="copy exists already"):
            writer.backup_to(tmp_path / "copy")
    assert check(tmp_path / "copy").problems == ()
    copy = IndexStore.open(tmp_path / "copy")
    assert (copy.snapshot.n_docs, store.snapshot.n_docs) == (n_docs, n_docs - 1)
    with copy.writer() as writer:
        writer.delete(["0-2"])
    assert store.snapshot.lookup(["0-2"])[0] >= 0


class OtherDisk(files.Disk):
    """A disk to which no hard link leads."""

    def link(self, source: Place, target: Place) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def test_a_snapshot_on_another_disk_is_a_copy(tmp_path: Path) -> None:
    store = scattered(tmp_path / "i")
    with store.writer() as writer, files.use_disk(OtherDisk()):
        writer.backup_to(tmp_path / "copy")
    assert check(tmp_path / "copy").problems == ()
    name = store.snapshot.manifest.files[0].name
    assert not (tmp_path / "copy" / name).samefile(store.path / name)


def test_a_snapshot_of_a_damaged_index_is_refused(tmp_path: Path) -> None:
    store = scattered(tmp_path / "i")
    file = store.path / store.snapshot.manifest.segments[0].vectors["v1"].file.name
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with store.writer() as writer, pytest.raises(CorruptIndex, match=r"seg/000000\.vec\.npy"):
        writer.backup_to(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_check_compares_the_parts_of_an_index_with_each_other(tmp_path: Path) -> None:
    """A file with the right hash and the wrong content, as only a defect of ours could write."""
    from sbert_search.index.storage import manifest as manifests
    from sbert_search.index.storage import segments as npy

    store = scattered(tmp_path / "i")
    manifest, segment = store.snapshot.manifest, store.snapshot.segments[2]
    table = segment.ids.copy()
    table[1, [3, 4]] = table[1, [4, 3]]
    folder = store.snapshot.folder
    file = npy.write(folder / "seg/000077.ids.npy", table)
    changed = dataclasses.replace(manifest.segments[2], ids=FileRecord.of(file))
    segments = (*manifest.segments[:2], changed, *manifest.segments[3:])
    manifests.write(folder, dataclasses.replace(manifest, segments=segments))
    assert [problem.file for problem in check(store.path).problems] == ["seg/000077.ids.npy"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "factory",
    [
        "HNSW16",
        "HNSW32,SQ8",
        "HNSW16,SQbf16",
        "IVF16,Flat",
        "IVF16,SQ8",
        "IVF16,PQ8x4",
        "SQfp16",
        "RR8,IVF16,SQ8",
        "IVF16,RaBitQ",
        "IVF16,RaBitQfs",
        "IVF16,PQ16x4fs",
    ],
)
def test_the_bytes_of_a_faiss_index_are_predicted(factory: str) -> None:
    faiss = faiss_runtime.import_faiss()
    settings = VectorSettings(dim=32, spec=IndexSpec(factory=factory))
    vectors = some_vectors(20_000, dim=32)
    index = faiss_build.train([vectors], settings)
    assert index is not None
    index.add(vectors)
    assert settings.spec.predicted_bytes(20_000, 32) == pytest.approx(
        len(faiss.serialize_index(index)), rel=0.1
    )


@pytest.mark.usefixtures("small_ann")
def test_a_budget_refuses_what_it_cannot_hold_and_limits_the_training_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = VectorSettings(dim=8, spec=IndexSpec(factory="IVF16,Flat"))
    store = IndexStore.create(tmp_path / "i", Manifest.new(settings))
    sampled: list[int] = []
    evenly = faiss_build._evenly

    def count(samples: Sequence[Vectors], wanted: int) -> NDArray[np.float32]:
        sample = evenly(samples, wanted)
        sampled.append(sample.nbytes)
        return sample

    monkeypatch.setattr(faiss_build, "_evenly", count)
    monkeypatch.setattr(faiss_build, "ADD_ROWS", 100)
    monkeypatch.setattr(memory, "anonymous_bytes", lambda: 1_000_000)
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(3_000), some_vectors(3_000, seed=1)))
        with (
            memory_limited(1_100_000),
            pytest.raises(
                ConfigError, match=r"3,000 vectors of 8 dimensions takes about 0.2 MiB, but 0.1"
            ),
        ):
            writer.compact()
        assert sampled == []
        with memory_limited(1_300_000):
            writer.compact()
    assert 0 < sampled[0] <= 1_300_000 / 4
    assert store.snapshot.manifest.segments[0].vectors["v1"].ann is not None


def test_merged_batches_of_large_rows_have_fewer_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "BATCH_BYTES", 40_000)
    monkeypatch.setattr(compaction, "PIECE_BYTES", 10_000)
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8), {"m": "string"}))
    documents = [
        Document(f"d{n}", f"text {n}", metadata={"m": str(n) * 2000}, source="s") for n in range(90)
    ]
    with store.writer() as writer:
        for start in range(0, 90, 30):
            part = documents[start : start + 30]
            writer.commit(make_batch(part, some_vectors(30, seed=start)))
        writer.delete(["d3"])
        writer.compact()
    snapshot = IndexStore.open(store.path).snapshot
    (segment,) = snapshot.segments
    assert segment.batch_rows == 8
    expected = [document for document in documents if document.doc_id != "d3"]
    assert list(snapshot.iter_documents()) == expected
    rows = snapshot.lookup([document.doc_id for document in expected])
    assert [passage.document for passage in snapshot.fetch(rows)] == expected
    assert snapshot.doc_ids(rows) == [document.doc_id for document in expected]
    assert check(store.path).problems == ()
