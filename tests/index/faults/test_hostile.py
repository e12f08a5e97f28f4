"""A folder from a stranger: refused by name or searched exactly, never followed out of itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.base import files
from sbert_search.base.folders import Folder
from sbert_search.errors import CorruptIndex, IndexStoreError
from sbert_search.index import settings as spec
from sbert_search.index.dense import faiss_file, faiss_runtime
from sbert_search.index.settings import IndexSpec
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage import transaction
from sbert_search.index.storage.manifest import NAME, FileRecord, Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import merge_policy
from tests.faults import FULL, keep_result
from tests.index.batches import make_batch, some_documents, some_vectors

SEGMENTS = 1_000_000 if FULL else 3_000

folders: dict[str, int] = {}
seconds: list[float] = []


@pytest.fixture(autouse=True)
def counted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the figures after each test that passes."""
    begun, failed = time.monotonic(), request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        return
    seconds.append(round(time.monotonic() - begun, 2))
    kind = request.node.originalname.removeprefix("test_")
    folders[kind] = folders.get(kind, 0) + 1
    figures = {"segments_of_one_manifest": SEGMENTS, "longest_s": max(seconds)}
    keep_result("index_hostile", {"folders": folders, **figures, "followed_or_run": 0})


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """600 rows under an IVF file, and some dead ones."""
    settings = VectorSettings(dim=8, spec=IndexSpec(factory="IVF8,Flat", nprobe=8))
    with pytest.MonkeyPatch.context() as patch:
        for module in (merge_policy, spec):
            patch.setattr(module, "MIN_ANN_ROWS", 500)
        patch.setattr(transaction, "PACK_BYTES", -1)
        store = IndexStore.create(tmp_path_factory.mktemp("sound") / "i", Manifest.new(settings))
        with store.writer() as writer:
            writer.commit(make_batch(some_documents(600), some_vectors(600)))
            writer.compact()
            writer.delete(["d1"])
        yield store.path


@pytest.fixture
def index(sound: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(sound, tmp_path / "i"))


def rewrite(index: Path, *keys: str | int, value: object) -> None:
    """Give one place of a manifest another value, and sign it."""
    values = json.loads((index / NAME).read_bytes().partition(b"\n")[2])
    place: Any = values
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    body = json.dumps(values).encode()
    (index / NAME).write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


DOCS = ("segments", 0, "docs", "name")
VECTORS = ("segments", 0, "vectors", "v1", "file", "size_bytes")


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (DOCS, "../../etc/passwd"),
        (DOCS, "/etc/passwd"),
        (DOCS, "seg/../seg/000000.docs.arrow"),
        (DOCS, "seg/000000.docs.arrow\n"),
        (DOCS, "seg/000000.vec.npy"),
        (("segments", 0, "vectors", "v1", "ann", "name"), "ann/../../x.faiss"),
        (("tombstones", 0, "file", "name"), "del/../MANIFEST.json"),
        (VECTORS, 2**62),
        (VECTORS, -1),
        (("segments", 0, "n_rows"), 2**62),
        (("segments", 0, "row_end"), 2**62),
        (("vectors", "v1", "dim"), 65_536),
        (("next_row",), 2**63),
        (("next_file",), 10**12),
        (("tombstones", 0, "n_rows"), 2**40),
    ],
)
def test_names_and_sizes_that_cannot_be_are_refused(
    index: Path, keys: tuple[str | int, ...], value: object
) -> None:
    rewrite(index, *keys, value=value)
    with pytest.raises(IndexStoreError):
        IndexStore.open(index).snapshot.search(some_vectors(1), 5)


@pytest.mark.parametrize("name", ["seg/000000.vec.npy", "seg/000000.docs.arrow", NAME, "LOCK"])
def test_links_and_pipes_are_not_followed(index: Path, tmp_path: Path, name: str) -> None:
    names = [path.relative_to(index).as_posix() for path in index.glob("seg/*")]
    wanted = next((n for n in names if n.endswith(name[10:])), name) if "/" in name else name
    victim = tmp_path / "victim"
    victim.write_bytes((index / wanted).read_bytes())
    kinds = ["link"] if name == "LOCK" else ["link", "pipe"]  # a pipe is locked as well as a file
    for kind in kinds:
        (index / wanted).unlink()
        if kind == "link":
            (index / wanted).symlink_to(victim)
        else:
            os.mkfifo(index / wanted)
        before = victim.read_bytes()
        with pytest.raises(IndexStoreError), IndexStore.open(index).writer() as writer:
            writer.delete(["d2"])
        assert victim.read_bytes() == before


def test_too_many_segments_are_too_many_bytes(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_BYTES", manifests.MAX_BYTES if FULL else 1 << 20)
    values = json.loads((index / NAME).read_bytes().partition(b"\n")[2])
    record = json.dumps(values["segments"][0]).encode()
    body = b'{"format":"sbert-search index","segments":[' + b",".join([record] * SEGMENTS) + b"]}"
    (index / NAME).write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    with pytest.raises(CorruptIndex, match="MANIFEST"):
        IndexStore.open(index)


def with_faiss_file(index: Path, other: Any) -> None:
    """Give the first segment another FAISS index under a sound record."""
    faiss = faiss_runtime.import_faiss()
    folder = Folder.open(index)
    with files.NewFile(folder / "ann/000099.faiss") as file:
        faiss.write_index(other, faiss.PyCallbackIOWriter(file.write))
    manifest = manifests.read(folder)
    record = FileRecord(name="ann/000099.faiss", size_bytes=file.n_bytes, xxh3_128=file.digest)
    segment = manifest.segments[0].with_ann("v1", record)
    manifests.write(folder, dataclasses.replace(manifest, segments=(segment,)))


@pytest.mark.parametrize("factory", ["IDMap,Flat", "LSH", "NSG8", "Flat", "IDMap2,IVF8,Flat"])
def test_a_kind_of_index_that_no_spec_makes_is_not_searched(index: Path, factory: str) -> None:
    faiss = faiss_runtime.import_faiss()
    other = faiss.index_factory(8, factory)
    other.train(some_vectors(600))
    vectors = some_vectors(590 if factory == "Flat" else 600)  # Flat: of another length
    if factory.startswith("IDMap"):
        other.add_with_ids(vectors, np.arange(600))
    else:
        other.add(vectors)
    expected = IndexStore.open(index).snapshot.search(some_vectors(3), 5, exact=True)[1]
    with_faiss_file(index, other)
    with pytest.warns(UserWarning, match="Searching without ann/000099"):
        found = IndexStore.open(index).snapshot.search(some_vectors(3), 5)[1]
    assert (found == expected).all()


def test_lists_in_another_file_are_not_searched(index: Path, tmp_path: Path) -> None:
    faiss = faiss_runtime.import_faiss()
    other = faiss.index_factory(8, "IVF8,Flat")
    other.train(some_vectors(600))
    other.add(some_vectors(600))
    lists = faiss.OnDiskInvertedLists(8, other.code_size, str(tmp_path / "secret"))
    lists.merge_from(other.invlists, 0)
    other.replace_invlists(lists)
    with_faiss_file(index, other)
    with pytest.warns(UserWarning, match="Searching without ann/000099"):
        IndexStore.open(index).snapshot.search(some_vectors(3), 5)


def test_searching_leaves_the_memory_limit_of_faiss_to_other_files(index: Path) -> None:
    faiss = faiss_runtime.import_faiss()
    before = faiss.get_deserialization_vector_byte_limit()
    snapshot = IndexStore.open(index).snapshot
    assert snapshot.anns[0] is not None
    assert snapshot.anns[0].index is not None
    assert snapshot.anns[0].read(mapped=False) is not None
    assert faiss.get_deserialization_vector_byte_limit() == before


def test_strange_faiss_files_are_made_again_without_being_read(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faiss = faiss_runtime.import_faiss()
    other = faiss.index_factory(8, "LSH")
    other.add(some_vectors(600))
    with_faiss_file(index, other)
    store = IndexStore.open(index)
    monkeypatch.setattr(faiss_file.FaissFile, "read", lambda *_, **__: pytest.fail("it was read"))
    with store.writer() as writer:
        writer.compact(retrain=True)
    monkeypatch.undo()
    assert not (index / "ann/000099.faiss").exists()
    found = IndexStore.open(index).snapshot
    assert found.anns[0] is not None
    assert found.anns[0].index is not None


def _search_in_a_fork(index: Path, told: Any) -> None:
    try:
        IndexStore.open(index).snapshot.search(some_vectors(1), 5)
        told.put("searched")
    except IndexStoreError as error:
        told.put(str(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_after_faiss_was_used_is_told_so_and_does_not_hang(index: Path) -> None:
    vectors = np.repeat(some_vectors(600), 20, axis=0)
    filled = faiss_runtime.import_faiss().index_factory(8, "Flat")
    filled.add(vectors)
    filled.search(vectors[:500], 5)  # starts FAISS's threads
    fork = multiprocessing.get_context("fork")
    told = fork.SimpleQueue()
    child = fork.Process(target=_search_in_a_fork, args=(index, told))
    child.start()
    child.join(timeout=30)
    assert child.exitcode == 0
    assert "which had loaded FAISS" in told.get()
