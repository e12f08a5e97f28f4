"""The small files of an update are one file on disk, with one fsync."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path

import pytest

from sbert_search.base.files import Disk, use_disk
from sbert_search.base.folders import AnyFolder, Place
from sbert_search.errors import CorruptIndex
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.index.batches import make_batch, some_documents, some_vectors

EMPTY = Manifest.new(VectorSettings(dim=8), lexical=LexicalSettings())


def packed_index(path: Path) -> IndexStore:
    """Three documents in one pack, then one of them replaced by a second pack."""
    store = IndexStore.create(path, EMPTY)
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(3), some_vectors(3)))
        writer.commit(make_batch(some_documents(1), some_vectors(1, seed=1)))
    return store


def packs_of(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "seg").iterdir())


class Counting(Disk):
    """A disk that counts the calls of its methods."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def fsync(self, fd: int) -> None:
        self.calls["fsync"] += 1
        super().fsync(fd)

    def fsync_folder(self, place: AnyFolder) -> None:
        self.calls["fsync"] += 1
        super().fsync_folder(place)

    def open_new(self, place: Place) -> int:
        self.calls["new files"] += 1
        return super().open_new(place)


def test_a_small_commit_is_two_new_files_and_four_fsyncs(tmp_path: Path) -> None:
    store, disk = packed_index(tmp_path / "i"), Counting()
    with store.writer() as writer, use_disk(disk):
        writer.commit(make_batch(some_documents(2, "e"), some_vectors(2, seed=2)))
    assert disk.calls == {"fsync": 4, "new files": 2}  # a pack and the manifest, and their folders
    assert store.snapshot.n_docs == 5
    report = check(store.path)
    assert not report.problems
    assert not report.strays


def test_a_large_commit_is_not_packed(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", EMPTY)
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(40_000), some_vectors(40_000)))
    assert not any(name.endswith(".pack") for name in packs_of(store.path))


def test_a_pack_is_removed_when_no_file_in_it_is_used(tmp_path: Path) -> None:
    store = packed_index(tmp_path / "i")
    before = packs_of(store.path)
    assert [name.endswith(".pack") for name in before] == [True, True]
    with store.writer() as writer:
        writer.compact()
    [after] = packs_of(store.path)
    assert after not in before
    assert check(store.path).strays == ()
    assert store.snapshot.n_docs == 3


@pytest.mark.parametrize("another_disk", [False, True])
def test_a_backup_has_the_packs(
    tmp_path: Path, another_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    store = packed_index(tmp_path / "i")
    if another_disk:
        monkeypatch.setattr(os, "link", refused)
    with store.writer() as writer:
        writer.backup_to(tmp_path / "copy")
    assert packs_of(tmp_path / "copy") == packs_of(store.path)
    assert check(tmp_path / "copy").problems == ()
    assert IndexStore.open(tmp_path / "copy").snapshot.n_docs == 3


def test_damaged_postings_in_a_pack_are_counted_again_and_made_again(tmp_path: Path) -> None:
    store = packed_index(tmp_path / "i")
    lexical = store.snapshot.manifest.segments[0].lexical
    assert lexical is not None
    damaged(store.path / lexical.pairs.on_disk, lexical.pairs.offset + 140)
    with pytest.warns(UserWarning, match=r"\.pack:lex/.* is corrupt"):
        ((rows, *_),) = IndexStore.open(store.path).snapshot.lexical.search(["text"], 5)
    assert len(rows) == 3
    with IndexStore.open(store.path).writer() as writer:
        writer.repair()
    assert check(store.path).problems == ()


def test_words_made_again_in_a_compaction_leave_the_documents_beside_them(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", EMPTY)
    with store.writer() as writer:
        for name in "abc":
            writer.commit(make_batch(some_documents(300, name), some_vectors(300)))
    lexical = store.snapshot.manifest.segments[0].lexical
    assert lexical is not None
    assert lexical.words is not None
    damaged(store.path / lexical.words.on_disk, lexical.words.offset + 40)
    with IndexStore.open(store.path).writer() as writer:
        writer.compact()
    assert check(store.path).problems == ()
    assert IndexStore.open(store.path).snapshot.n_docs == 900


def damaged(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.unlink()
    file.write_bytes(data)


@pytest.mark.thorough
def test_every_flip_and_every_cut_of_a_pack_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "i"
    store = IndexStore.create(path, EMPTY)
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(2), some_vectors(2)))
    [file] = (path / "seg").iterdir()
    data, named, n_counted = file.read_bytes(), list[str](), 0
    bads = [data[:at] for at in range(len(data))] + [data + b"\0"]
    for at in range(len(data)):
        bads.append(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
    for bad in bads:
        file.unlink()
        file.write_bytes(bad)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                ((rows, *_),) = IndexStore.open(path).snapshot.lexical.search(["text"], 5)
            except CorruptIndex as error:
                named.append(error.file)
            else:
                assert len(rows) == 2
                assert f"seg/{file.name}:lex/" in str(warned[0].message)
                n_counted += 1
    assert all(name.startswith(f"seg/{file.name}:seg/") for name in named)
    assert len(named) + n_counted == 2 * len(data) + 1
    assert min(len(named), n_counted) > 200
