"""A sharded index is opened whole or not at all, and messages name the shard and the remedy."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import resource
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sbert_search.base.folders import Folder
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import (
    ConfigError,
    CorpusError,
    CorruptIndex,
    IndexLocked,
    IndexStoreError,
    NotAnIndex,
)
from sbert_search.index.index import Index
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.shards import manifest as shard_manifests
from sbert_search.index.shards import opening
from sbert_search.index.shards.held import HeldShard
from sbert_search.index.shards.manifest import FILES_OF_SHARD
from sbert_search.index.shards.opening import NEXT, open_shards
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import segments
from sbert_search.index.storage.manifest import BuildCursor
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from sbert_search.index.writer import IndexWriter
from tests.index.batches import make_batch, some_documents, some_vectors
from tests.index.faults.model import DIM, EMPTY, Operation, apply, contents
from tests.index.shards.sharded import N_SHARDS, new_sharded

pytestmark = pytest.mark.usefixtures("unpacked")

PUT = Operation("put", tuple((f"d{i}", 0, 1) for i in range(12)))
MORE = Operation("put", tuple((f"e{i}", 0, 1) for i in range(12)))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    new_sharded(tmp_path / "i", [PUT])
    return tmp_path / "i"


def change(path: Path) -> None:
    with IndexStore.open(path).writer() as writer:
        apply(writer, MORE)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shutil.rmtree(sharded / "shard-0001")
    with pytest.raises(CorruptIndex, match="shard-0001 is corrupt: expected the folder of a shard"):
        IndexStore.open(sharded)


def test_a_missing_file_is_named_also_after_a_relative_path(
    sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = next((sharded / "shard-0001" / "seg").glob("*.vec.npy"))
    file.unlink()
    monkeypatch.chdir(sharded.parent)
    with pytest.raises(CorruptIndex, match=f"^shard-0001/seg/{file.name} is corrupt"):
        IndexStore.open(sharded.name)


def test_a_writer_names_the_shard_of_a_file_that_was_removed(sharded: Path) -> None:
    store = IndexStore.open(sharded)
    file = next((sharded / "shard-0001" / "seg").glob("*.vec.npy"))
    file.unlink()
    with pytest.raises(CorruptIndex, match=f"^shard-0001/seg/{file.name} is"), store.writer():
        pass


def test_a_writer_names_the_shard_of_a_file_that_was_removed_after_a_commit_of_another(
    sharded: Path,
) -> None:
    store, known = IndexStore.open(sharded), set(sharded.rglob("*.vec.npy"))
    change(sharded)
    file = max(set(sharded.rglob("*.vec.npy")) - known)
    file.unlink()
    name = file.relative_to(sharded)
    with pytest.raises(CorruptIndex, match=f"^{name} is corrupt"), store.writer():
        pass


@pytest.mark.parametrize("name", ["MANIFEST.json", "seg/*.vec.npy", "seg/*.docs.arrow"])
def test_a_damaged_file_is_named_with_its_shard(sharded: Path, name: str) -> None:
    file = next((sharded / "shard-0001").glob(name))
    file.write_bytes(file.read_bytes()[:-1])
    shown = re.escape(str(file.relative_to(sharded)))
    with pytest.raises(CorruptIndex, match=f"^{shown} is corrupt: .* Restore the file from"):
        IndexStore.open(sharded)
    (problem,) = check(sharded).problems
    assert problem.file == str(file.relative_to(sharded))


@pytest.mark.parametrize(
    "change",
    [lambda writer: writer.compact(), lambda writer: writer.set_lexical(LexicalSettings())],
)
def test_a_change_that_reads_a_damaged_file_names_its_shard(
    sharded: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[IndexWriter], object]
) -> None:
    defaults: Any = segments.open_checked.__kwdefaults__
    monkeypatch.setitem(defaults, "hash_up_to", 0)
    monkeypatch.setattr(segments, "HASH_AT_OPEN_BYTES", 0)
    with IndexStore.open(sharded).writer() as writer:
        apply(writer, MORE)  # so that there is something to compact
    file = min((sharded / "shard-0001" / "seg").glob("*.docs.arrow"))
    file.write_bytes(file.read_bytes().replace(b"text v", b"test v"))
    store = IndexStore.open(sharded)
    named = f"^shard-0001/seg/{file.name} is corrupt"
    with store.writer() as writer, pytest.raises(CorruptIndex, match=named):
        change(writer)


@pytest.mark.parametrize("harm", ["cut", "remove"])
def test_a_shard_with_a_damaged_derived_file_is_changed(sharded: Path, harm: str) -> None:
    file = next((sharded / "shard-0001" / "lex").glob("*.pairs.npy"))
    data = file.read_bytes()
    file.unlink()
    if harm == "cut":
        file.write_bytes(data[:-1])
    change(sharded)
    opened = IndexStore.open(sharded).snapshot
    assert opened.n_docs == 24
    with pytest.warns(UserWarning, match=f"index repair {sharded}`"):  # a shard is not repaired
        assert len(opened.match(["text"], 30)[0][0]) == 24


def test_an_interrupted_commit_is_opened_without_a_derived_file(
    sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(HeldShard, "publish", lambda shard: None)
        change(sharded)
    assert (sharded / "shard-0001" / NEXT).is_file()
    for file in (sharded / "shard-0001" / "lex").glob("*.pairs.npy"):
        file.unlink()
    assert IndexStore.open(sharded).snapshot.n_docs == 24


@pytest.mark.parametrize("harm", ["cut", "remove"])
def test_a_backup_names_the_file_that_is_not_whole(
    sharded: Path, tmp_path: Path, harm: str
) -> None:
    file = next((sharded / "shard-0001" / "lex").glob("*.pairs.npy"))
    data = file.read_bytes()
    file.unlink()
    if harm == "cut":
        file.write_bytes(data[:-1])
    store = IndexStore.open(sharded)
    with pytest.raises(CorruptIndex, match=f"^shard-0001/lex/{file.name} is corrupt.*index repair"):
        store.backup_to(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_shard_that_was_restored_on_its_own_is_named(sharded: Path) -> None:
    shutil.copytree(sharded / "shard-0002", sharded.parent / "old")
    change(sharded)
    shutil.rmtree(sharded / "shard-0002")
    shutil.copytree(sharded.parent / "old", sharded / "shard-0002")
    with pytest.raises(CorruptIndex, match=r"shard-0002/MANIFEST\.json.*restored on its own"):
        IndexStore.open(sharded)
    with pytest.raises(CorruptIndex), IndexStore.open(sharded).writer():
        pass


def test_a_shard_is_not_changed_on_its_own(sharded: Path) -> None:
    shard = IndexStore.open(sharded / "shard-0001")
    with pytest.raises(IndexStoreError, match=r"is a shard.*Change .*/i instead"), shard.writer():
        pass
    link = sharded.parent / "link"
    link.symlink_to(sharded / "shard-0000")
    shard = IndexStore.open(link)
    with pytest.raises(IndexStoreError, match=r"is a shard.*Change .*/i instead"), shard.writer():
        pass


def test_a_shard_is_an_ordinary_index_to_read(sharded: Path) -> None:
    sizes = [len(Index.open(sharded / f"shard-{n:04d}")) for n in range(N_SHARDS)]
    assert sum(sizes) == 12
    assert min(sizes) > 0


def test_a_store_does_not_move_to_an_index_of_the_other_kind(sharded: Path, tmp_path: Path) -> None:
    for path, n_shards in ((sharded, None), (tmp_path / "one", 2)):
        if n_shards:
            IndexStore.create(path, EMPTY)
        store = IndexStore.open(path)
        shutil.rmtree(path)
        IndexStore.create(path, EMPTY, n_shards=n_shards)
        with pytest.raises(NotAnIndex, match="now holds another index, with"):
            store.refresh()
        with pytest.raises(NotAnIndex), store.writer():
            pass


def test_other_folders_are_refused(sharded: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAnIndex, match="no such folder"):
        IndexStore.open(tmp_path / "absent")
    with pytest.raises(IndexStoreError, match="already holds an index"):
        IndexStore.create(sharded, EMPTY, n_shards=3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(IndexStoreError, match=r"not empty \(it holds 'notes\.txt'\)"):
        IndexStore.create(tmp_path / "full", EMPTY, n_shards=3)
    with pytest.raises(ConfigError, match="number of shards is 0"):
        IndexStore.create(tmp_path / "none", EMPTY, n_shards=0)


def test_a_build_goes_on_only_with_its_number_of_shards(sharded: Path, tmp_path: Path) -> None:
    with pytest.raises(IndexStoreError, match="has 3 shards, not 4"):
        Index.build(tmp_path / "absent.jsonl", out=sharded, n_shards=4)


def test_a_build_over_an_index_of_the_other_kind_is_refused_before_sources_are_read(
    sharded: Path, tmp_path: Path
) -> None:
    IndexStore.create(tmp_path / "one", EMPTY)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    absent = tmp_path / "absent.jsonl"
    with pytest.raises(IndexStoreError, match=r"holds a sharded index\. Name another"):
        Index.build(absent, out=sharded)
    with pytest.raises(IndexStoreError, match=r"without shards\. Name another"):
        Index.build(absent, out=tmp_path / "one", n_shards=2)
    for n_shards in (None, 4):
        with pytest.raises(IndexStoreError, match=r"not empty \(it holds 'notes\.txt'\)"):
            Index.build(absent, out=tmp_path / "full", n_shards=n_shards)
        with pytest.raises(CorpusError, match=r"absent\.jsonl"):
            Index.build(absent, out=tmp_path / "new", n_shards=n_shards)
    assert not (tmp_path / "new").exists()


def test_the_segments_of_a_build_depend_on_blocks_and_not_on_commits(tmp_path: Path) -> None:
    documents, vectors = some_documents(60), some_vectors(60, DIM)
    segments = []
    for name, borders in (("whole", ()), ("parts", (3, 4, 35, 36, 37))):
        IndexStore.create(
            tmp_path / name,
            dataclasses.replace(EMPTY, columns={"year": "int64"}),
            n_shards=N_SHARDS,
        )
        cuts = sorted({0, 30, 60, *borders})  # blocks of 30 documents
        for start, end in pairwise(cuts):
            with IndexStore.open(tmp_path / name).writer() as writer:  # a resumed build
                writer.commit(
                    make_batch(documents[start:end], vectors[start:end]),
                    cursor=BuildCursor(source_sha256="s", rows=end),
                    starts_block=start in (0, 30),
                    ends_block=end in (30, 60),
                )
        snapshot = IndexStore.open(tmp_path / name).snapshot
        segments.append(
            [
                [
                    (s.row_start, s.row_end, s.n_rows, s.vectors["v1"].file.xxh3_128)
                    for s in m.segments
                ]
                for m in [part.manifest for part in snapshot.parts]
            ]
        )
        assert [document.doc_id for document in snapshot.iter_documents()] == [
            document.doc_id for document in documents
        ]
        assert check(tmp_path / name).problems == ()
    assert segments[0] == segments[1]
    assert [len(shard) for shard in segments[0]] == [2] * N_SHARDS


def test_a_writer_has_few_files_open_and_says_how_to_allow_more(tmp_path: Path) -> None:
    def n_open() -> int:
        return len(os.listdir("/dev/fd"))

    with pytest.raises(ConfigError, match="a new index has at most 128"):
        Index.build(tmp_path / "absent.jsonl", out=tmp_path / "many", n_shards=129)
    path = tmp_path / "i"
    IndexStore.create(path, EMPTY, n_shards=8)
    before = n_open()
    store = IndexStore.open(path)
    with store.writer():
        assert n_open() - before <= FILES_OF_SHARD * 8 + 3
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for more in range(6, 22):  # the last file may be any of those of a shard
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_open() + more, hard))
        try:
            with pytest.raises(IndexStoreError, match=r"7 files .* 8 shards"), store.writer():
                pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with store.writer():
        pass


def test_an_index_with_more_shards_than_a_new_one_may_have_is_opened_and_built_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Index.create(tmp_path / "i", model=HashingEmbedder(8), n_shards=3)
    monkeypatch.setattr(shard_manifests, "MAX_NEW_SHARDS", 2)
    Index.open(tmp_path / "i").add([{"_id": "a", "text": "mill"}], model=HashingEmbedder(8))
    with pytest.raises(IndexStoreError, match="already holds a finished index"):
        Index.build(tmp_path / "absent.jsonl", out=tmp_path / "i", n_shards=3)


def test_one_process_writes_at_a_time(sharded: Path) -> None:
    store = IndexStore.open(sharded)
    with store.writer(), pytest.raises(IndexLocked), IndexStore.open(sharded).writer():
        pass


def test_a_reader_moves_to_a_newer_state_only_by_refresh(sharded: Path) -> None:
    reader = IndexStore.open(sharded)
    before = contents(reader.snapshot)
    assert not reader.refresh()
    change(sharded)
    assert contents(reader.snapshot) == before
    assert reader.refresh()
    assert len(contents(reader.snapshot)) == 24
    assert reader.snapshot.manifest.generation == 2


@pytest.mark.parametrize("kept", ["nothing", "shards"])
def test_a_reader_follows_the_path_when_the_index_is_replaced_while_it_is_opened(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    new = tmp_path / "new"
    new_sharded(new, [MORE])

    def replace_then_open(root: Folder, *rest: Any) -> Snapshot:
        if new.exists():
            if kept == "nothing":
                shutil.rmtree(sharded)
            else:
                sharded.rename(tmp_path / "old")
                shutil.rmtree(tmp_path / "old" / "shard-0001")
            new.rename(sharded)
        return open_shards(root, *rest)

    monkeypatch.setattr(opening, "open_shards", replace_then_open)
    opened = IndexStore.open(sharded)
    assert contents(opened.snapshot).keys() == {doc_id for doc_id, *_ in MORE.documents}


def test_a_copy_for_another_process_opens_the_path_again(sharded: Path) -> None:
    again = copy.copy(IndexStore.open(sharded, wait_s=2.0))
    assert contents(again.snapshot) == contents(IndexStore.open(sharded).snapshot)
    assert again.wait_s == 2.0


def test_an_index_over_moved_folders_is_not_written(sharded: Path) -> None:
    with IndexStore.open(sharded).writer() as writer:
        sharded.rename(sharded.with_name("elsewhere"))
        with pytest.raises(IndexStoreError, match="moved"):
            apply(writer, MORE)
    assert len(contents(IndexStore.open(sharded.with_name("elsewhere")).snapshot)) == 12


def test_a_backup_into_an_absent_folder_names_the_folder(sharded: Path, tmp_path: Path) -> None:
    store, target = IndexStore.open(sharded), tmp_path / "absent" / "copy"
    message = f"^The backup to {target} failed: .*No such file or directory: '{target.parent}'"
    with pytest.raises(IndexStoreError, match=message):
        store.backup_to(target)
    with store.writer() as writer, pytest.raises(IndexStoreError, match=message):
        writer.backup_to(target)
