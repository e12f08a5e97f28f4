"""Snapshots: made beside writers and of folders that cannot be written, and never half there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sbert_search.base import files
from sbert_search.base.folders import Entry, Place
from sbert_search.errors import CorruptIndex, IndexStoreError
from sbert_search.index.index import Index
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.index.faults.model import Model, Operation, apply, contents, new_index
from tests.index.faults.test_disks import mounted, remounted_read_only
from tests.index.faults.test_steps import BEFORE
from tests.index.faults.trap import Trap, set_trap


@pytest.mark.thorough
def test_a_compaction_at_any_step_of_a_snapshot_costs_it_nothing(fast_path: Path) -> None:
    new_index(fast_path / "i", BEFORE)
    for number in range(1, 1_000, 3):
        states: list[Model] = [contents(IndexStore.open(fast_path / "i").snapshot)]

        def rewrite(number: int = number, states: list[Model] = states) -> None:
            with IndexStore.open(fast_path / "i").writer() as writer:
                apply(writer, Operation("put", (("new", number, 2), ("d1", number, 1))))
                writer.compact()
            states.append(contents(IndexStore.open(fast_path / "i").snapshot))

        trap, target = Trap(number, rewrite), fast_path / f"copy{number}"
        with set_trap(trap):
            IndexStore.open(fast_path / "i").backup_to(target)
        assert contents(IndexStore.open(target).snapshot) in states
        assert check(target).problems == ()
        if not trap.sprung:
            break
    assert number > 40


def test_a_snapshot_is_made_while_another_writes(tmp_path: Path) -> None:
    model = new_index(tmp_path / "i", BEFORE)
    index = Index.open(tmp_path / "i")
    with IndexStore.open(tmp_path / "i").writer():
        index.backup(tmp_path / "copy")
    assert contents(IndexStore.open(tmp_path / "copy").snapshot) == model


def test_a_snapshot_of_a_read_only_mount_is_made_elsewhere(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=2m") as is_mounted:
        path = tmp_path / "disk" / "i"
        model = new_index(path, BEFORE)
        if is_mounted:
            remounted_read_only(tmp_path / "disk")
        else:
            path.chmod(0o555)
        Index.open(path).backup(tmp_path / "copy")
        if not is_mounted:
            path.chmod(0o755)
        assert contents(IndexStore.open(tmp_path / "copy").snapshot) == model


@pytest.mark.parametrize("harm", ["cut", "remove"])
@pytest.mark.parametrize(
    ("pattern", "remedy"), [("lex/*.pairs.npy", "index repair"), ("seg/*.vec.npy", "Restore")]
)
def test_a_file_that_is_not_whole_is_named_with_its_remedy(
    tmp_path: Path, harm: str, pattern: str, remedy: str
) -> None:
    new_index(tmp_path / "i", BEFORE)
    store = IndexStore.open(tmp_path / "i")
    file = next((tmp_path / "i").glob(pattern))
    data = file.read_bytes()
    file.unlink()
    if harm == "cut":
        file.write_bytes(data[:-1])
    with pytest.raises(CorruptIndex, match=f"{file.name} is corrupt.*{remedy}"):
        store.backup_to(tmp_path / "copy")
    assert os.listdir(tmp_path) == ["i"]


class FullDisk(files.Disk):
    """A disk on which nothing grows."""

    def write(self, fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_like_its_own_folder_stays_and_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    new_index(tmp_path / "i", BEFORE)
    mine = tmp_path / ".copy.partial" / "mine"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    with files.use_disk(FullDisk()), pytest.raises(IndexStoreError, match="No space left"):
        Index.open(tmp_path / "i").backup(tmp_path / "copy")
    assert sorted(os.listdir(tmp_path)) == [".copy.partial", "i"]
    Index.open(tmp_path / "i").backup(tmp_path / "copy")
    assert mine.read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == [".copy.partial", "copy", "i"]


class SwappingDisk(files.Disk):
    """A disk on which somebody puts another file in the place of one that is to be linked."""

    def link(self, source: Place, target: Place) -> None:
        assert not isinstance(source, Path)
        source.path.write_bytes(bytes(len(source.path.read_bytes())))
        super().link(source, target)


def test_a_file_that_is_not_what_it_was_is_not_taken_over(tmp_path: Path) -> None:
    new_index(tmp_path / "i", BEFORE)
    with files.use_disk(SwappingDisk()), pytest.raises(IndexStoreError, match="is corrupt"):
        Index.open(tmp_path / "i").backup(tmp_path / "copy")
    assert os.listdir(tmp_path) == ["i"]


def test_nothing_is_left_where_a_file_of_the_index_is_now_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_index(tmp_path / "i", BEFORE)
    (tmp_path / "own").write_bytes(b"somebody else's")
    store = IndexStore.open(tmp_path / "i")
    linked = Path(store.snapshot.manifest.segments[0].vectors["v1"].file.name)

    def swap_then_link(disk: files.Disk, source: Entry, target: Entry) -> None:
        if source.below == str(linked):
            source.path.unlink()
            source.path.symlink_to(tmp_path / "own")
        link(disk, source, target)

    link = files.Disk.link
    monkeypatch.setattr(files.Disk, "link", swap_then_link)
    with pytest.raises(IndexStoreError):
        store.backup_to(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i", "own"]
    assert (tmp_path / "own").read_bytes() == b"somebody else's"
