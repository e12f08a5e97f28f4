"""A writer writes the folder that it opened, and only while it is in its place."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sbert_search.errors import (
    CorruptIndex,
    IndexLocked,
    IndexStoreError,
    ModelMismatch,
    SbertSearchError,
)
from sbert_search.index.index import Index
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.index.batches import make_batch, some_documents, some_vectors
from tests.index.faults.happenings import digest

pytestmark = pytest.mark.usefixtures("unpacked")


def made(path: Path, n_docs: int = 4, prefix: str = "d") -> IndexStore:
    store = IndexStore.create(path, Manifest.new(VectorSettings(dim=8), {"year": "int64"}))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(n_docs, prefix), some_vectors(n_docs)))
    return store


def rows(path: Path, prefix: str, n_docs: int = 5) -> Path:
    lines = [json.dumps({"_id": f"{prefix}{n}", "text": f"{prefix} {n}"}) for n in range(n_docs)]
    path.write_text("\n".join(lines))
    return path


def files_of(path: Path) -> dict[str, str]:
    return {str(file.relative_to(path)): digest(file) for file in sorted(path.rglob("*"))}


@pytest.mark.parametrize(
    "change",
    [
        lambda writer: writer.repair(),
        lambda writer: writer.compact(),
        lambda writer: writer.delete(["d1"]),
    ],
)
@pytest.mark.parametrize("name", ["seg", "del", "ann", "lex"])
def test_a_linked_sub_folder_is_refused_and_what_it_leads_to_is_untouched(
    tmp_path: Path, name: str, change: Callable[..., object]
) -> None:
    victim = made(tmp_path / "victim").path
    for number, below in enumerate(("seg", "del", "ann", "lex"), 70):
        end = {"seg": "vec.npy", "del": "npy", "ann": "faiss", "lex": "pairs.npy"}[below]
        (victim / below / f"{number:06d}.{end}").write_bytes(b"x")
    for file in victim.rglob("*"):
        os.utime(file, (0, 0))
    before = files_of(victim)
    index = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8))).path
    shutil.rmtree(index / name)
    (index / name).symlink_to(victim / name)
    with (
        pytest.raises(IndexStoreError, match=rf"where a folder should be: '{index}/{name}"),
        IndexStore.open(index).writer() as writer,
    ):
        change(writer)
    assert files_of(victim) == before


def test_a_folder_that_is_moved_gets_no_more_commits_nor_what_takes_its_place(
    tmp_path: Path,
) -> None:
    store = made(tmp_path / "live")
    shutil.copytree(tmp_path / "live", tmp_path / "backup")
    with store.writer() as writer:
        writer.delete(["d0"])
        (tmp_path / "live").rename(tmp_path / "old")
        (tmp_path / "backup").rename(tmp_path / "live")
        before = files_of(tmp_path / "live")
        with pytest.raises(IndexStoreError, match="live was moved, removed or replaced while the"):
            writer.delete(["d1"])
    assert files_of(tmp_path / "live") == before
    assert IndexStore.open(tmp_path / "live").snapshot.n_docs == 4
    assert IndexStore.open(tmp_path / "old").snapshot.n_docs == 3
    assert check(tmp_path / "old").strays == ()


def test_two_that_write_because_a_lock_was_removed_never_both_commit(tmp_path: Path) -> None:
    first, second = made(tmp_path / "i"), IndexStore.open(tmp_path / "i")
    with first.writer() as one:
        (tmp_path / "i" / "LOCK").unlink()
        with second.writer() as other:
            other.delete(["d0"])
            with pytest.raises(IndexStoreError, match=r"LOCK was removed or replaced while the"):
                one.commit(make_batch(some_documents(3, "n"), some_vectors(3)))
            other.commit(make_batch(some_documents(3, "o"), some_vectors(3)))
    store = IndexStore.open(tmp_path / "i")
    assert [d.doc_id for d in store.snapshot.iter_documents()] == [
        "d1",
        "d2",
        "d3",
        "o0",
        "o1",
        "o2",
    ]
    assert check(tmp_path / "i").problems == ()


def test_a_manifest_that_was_brought_back_is_not_written_over(tmp_path: Path) -> None:
    store = made(tmp_path / "i")
    older = (tmp_path / "i" / "MANIFEST.json").read_bytes()
    with store.writer() as writer:
        writer.delete(["d0"])
        (tmp_path / "i" / "MANIFEST.json").write_bytes(older)
        with pytest.raises(IndexStoreError, match=r"MANIFEST\.json was removed or replaced"):
            writer.delete(["d1"])
    assert IndexStore.open(tmp_path / "i").snapshot.n_docs == 4


def test_a_state_whose_files_are_gone_gets_no_commit_though_they_are_open(tmp_path: Path) -> None:
    store = made(tmp_path / "i")
    (tmp_path / "i" / store.snapshot.manifest.segments[0].vectors["v1"].file.name).unlink()
    with pytest.raises(CorruptIndex, match="no such file"), store.writer():
        pass


def test_a_reader_of_a_folder_that_was_replaced_sees_the_new_one(tmp_path: Path) -> None:
    reader = made(tmp_path / "i")
    made(tmp_path / "other", 2, "o")
    (tmp_path / "i").rename(tmp_path / "old")
    (tmp_path / "other").rename(tmp_path / "i")
    assert reader.refresh()
    assert [d.doc_id for d in reader.snapshot.iter_documents()] == ["o0", "o1"]


def test_a_change_of_folder_does_not_lead_a_relative_path_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        made(tmp_path / name / "i")
    monkeypatch.chdir(tmp_path / "here")
    store = IndexStore.open("i")
    monkeypatch.chdir(tmp_path / "there")
    with store.writer() as writer:
        writer.delete(["d0"])
    assert IndexStore.open(tmp_path / "here" / "i").snapshot.n_docs == 3
    assert IndexStore.open(tmp_path / "there" / "i").snapshot.n_docs == 4


def test_who_waits_for_an_index_that_is_replaced_by_one_of_another_model_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "i"
    Index.build(rows(tmp_path / "a.jsonl", "a"), out=path, model="hashing:8")
    Index.build(rows(tmp_path / "b.jsonl", "b"), out=tmp_path / "other", model="hashing:16")
    waiting = Index.open(path, wait_s=30)
    raised: list[SbertSearchError] = []

    def add() -> None:
        try:
            waiting.add(rows(tmp_path / "c.jsonl", "c"))
        except SbertSearchError as error:
            raised.append(error)

    thread = threading.Thread(target=add)
    with IndexStore.open(path).writer():
        thread.start()
        time.sleep(0.3)
        path.rename(tmp_path / "old")
        (tmp_path / "other").rename(path)
        thread.join(timeout=30)  # it need not wait for the index that is gone
    assert [type(error) for error in raised] == [ModelMismatch]
    assert (len(Index.open(path)), len(Index.open(tmp_path / "old"))) == (5, 5)


def test_files_from_before_a_clock_was_set_back_are_removed(tmp_path: Path) -> None:
    store = made(tmp_path / "i")
    stray = tmp_path / "i" / "seg" / "000099.vec.npy"
    for ahead_s, stays in ((-60, True), (3_600, False)):
        stray.write_bytes(b"x")
        os.utime(stray, (time.time() + ahead_s,) * 2)
        with store.writer():
            pass
        assert stray.exists() == stays


def test_only_files_are_removed_as_strays(tmp_path: Path) -> None:
    store = made(tmp_path / "i")
    (tmp_path / "note").write_bytes(b"mine")
    (tmp_path / "i/seg/000098.vec.npy").symlink_to(tmp_path / "note")
    (tmp_path / "i/seg/000099.vec.npy").mkdir()
    with store.writer() as writer:
        assert writer.repair() == []
        writer.commit(make_batch(some_documents(2, "n"), some_vectors(2)))
    assert (tmp_path / "i/seg/000098.vec.npy").is_symlink()
    assert store.snapshot.manifest.segments[1].docs.name == "seg/000100.docs.arrow"


def test_the_documents_of_an_index_that_lost_its_manifest_are_not_built_over(
    tmp_path: Path,
) -> None:
    source = rows(tmp_path / "a.jsonl", "a")
    path = Index.build(source, out=tmp_path / "i", model="hashing:8").path
    kept = (path / "MANIFEST.json").read_bytes()
    (path / "MANIFEST.json").unlink()
    before = files_of(path)
    with pytest.raises(IndexStoreError, match=r"files of an index \(seg/.*is missing. Restore"):
        Index.build(source, out=path, model="hashing:8")
    assert files_of(path) == before
    (path / "MANIFEST.json").write_bytes(kept)
    assert len(Index.open(path)) == 5


@pytest.mark.parametrize("left", [(), (".probe-1", ".probe-2"), ("LOCK", "MANIFEST.json.tmp")])
def test_what_a_killed_creation_left_is_taken_over(tmp_path: Path, left: tuple[str, ...]) -> None:
    (tmp_path / "i" / "seg").mkdir(parents=True)
    for name in left:
        (tmp_path / "i" / name).write_bytes(b"left")
    assert made(tmp_path / "i").snapshot.n_docs == 4
    assert not list((tmp_path / "i").glob(".probe-*"))


@pytest.mark.parametrize(
    ("differing", "name", "model"),
    [("another source", "b", "hashing:8"), ("another model", "a", "hashing:16")],
)
def test_an_unfinished_build_makes_room_for_another_only_while_it_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differing: str, name: str, model: str
) -> None:
    source, chosen = rows(tmp_path / "a.jsonl", "a"), rows(tmp_path / f"{name}.jsonl", name)

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for committed in (True, False):
        path = tmp_path / f"i{committed}"
        with monkeypatch.context() as patch:
            at = "IndexWriter.finish_build" if committed else "IndexWriter.commit"
            patch.setattr(f"sbert_search.index.writer.{at}", stopped)
            with pytest.raises(KeyboardInterrupt):
                Index.build(source, out=path, model="hashing:8")
        if committed:
            with pytest.raises(IndexStoreError, match=f"5 documents of an .* with {differing}. "):
                Index.build(chosen, out=path, model=model)
            assert len(Index.build(source, out=path, model="hashing:8")) == 5
        else:
            built = Index.build(chosen, out=path, model=model)
            assert {d.doc_id[0] for d in built.state.iter_documents()} == {name}


def test_of_two_builds_into_one_folder_one_is_refused_by_name(tmp_path: Path) -> None:
    source = rows(tmp_path / "a.jsonl", "a", 40)
    problems: list[str] = []
    start = threading.Barrier(4)

    def build() -> None:
        start.wait()
        try:
            Index.build(source, out=tmp_path / "i", model="hashing:8")
        except IndexLocked:
            pass
        except IndexStoreError as error:
            problems.append(str(error))

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("already holds a finished index" in problem for problem in problems)
    assert len(Index.open(tmp_path / "i")) == 40
