"""Real limits: a disk that is full, a folder that cannot be written, writers in a crowd."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbert_search.errors import CorruptIndex, IndexStoreError, NotAnIndex
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.base.limits import limited, open_descriptors
from tests.faults import FULL, keep_result
from tests.index.faults.model import (
    EMPTY,
    Model,
    Operation,
    applied,
    apply,
    assert_holds,
    new_index,
)

DISKS_MIB = (2, 8, 32) if FULL else (2,)

HOLDERS = 50 if FULL else 2

kept: dict[str, int] = {}
free_after_s: list[float] = []


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[bool]:
    """Mount a small RAM disk, where this process may."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        done = False
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def remounted_read_only(folder: Path) -> None:
    """Let nobody write to a mounted disk any more."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def put(number: int, n_docs: int) -> Operation:
    return Operation("put", tuple((f"{number}-{i}", number, 1) for i in range(n_docs)))


def fill(path: Path, model: Model) -> tuple[Model, str]:
    """Commit ever more until the disk refuses; return what was acknowledged and the error."""
    with IndexStore.open(path).writer() as writer:
        for number in range(1000):
            operation = put(number, 50 * (number + 1))
            try:
                apply(writer, operation)
            except IndexStoreError as error:
                return model, str(error)
            model = applied(model, operation)
    raise AssertionError("the disk is never full")


@pytest.mark.thorough
@pytest.mark.parametrize("size_mib", DISKS_MIB)
def test_a_full_disk_stops_the_commit_and_keeps_all_before(tmp_path: Path, size_mib: int) -> None:
    with mounted(tmp_path / "disk", f"size={size_mib}m") as is_mounted:
        if not is_mounted:
            pytest.skip("this user may not mount a disk; try under `unshare -rm`")
        path = tmp_path / "disk" / "i"
        model = new_index(path, [put(5000, 5)])
        model, message = fill(path, model)
        assert "No space left" in message
        assert "is as it was before this commit; free or repair the disk" in message
        assert len(model) > 100
        assert_holds(IndexStore.open(path).snapshot, model)
        assert check(path).problems == ()
        with IndexStore.open(path).writer() as writer:
            writer.delete(["5000-0"])
        kept[f"{size_mib} MiB"] = len(model)
        keep_result("index_full_disk", {"documents_kept_on_a_disk_of": kept, "lost": 0})


def test_a_size_limit_stops_the_commit_and_keeps_all_before(tmp_path: Path) -> None:
    model = new_index(tmp_path / "i", [put(1000, 5)])
    with limited(resource.RLIMIT_FSIZE, 40_000):
        model, message = fill(tmp_path / "i", model)
    assert "File too large" in message
    assert len(model) > 100
    assert_holds(IndexStore.open(tmp_path / "i").snapshot, model)


def test_too_few_open_files_are_no_damage(tmp_path: Path) -> None:
    model = new_index(tmp_path / "i", [put(number, 3) for number in range(40)])
    with (
        limited(resource.RLIMIT_NOFILE, 3),  # none besides stdin, stdout and stderr
        pytest.raises(IndexStoreError, match="Too many open files") as refused,
    ):
        IndexStore.open(tmp_path / "i")
    assert not isinstance(refused.value, (CorruptIndex, NotAnIndex))
    assert_holds(IndexStore.open(tmp_path / "i").snapshot, model)


def test_an_index_of_many_segments_needs_few_open_files(tmp_path: Path) -> None:
    model = new_index(tmp_path / "i", [put(number, 3) for number in range(40)])
    held = 7  # folder (of reader and writer), lock, and the four folders in it while it is written
    with limited(resource.RLIMIT_NOFILE, open_descriptors() + held + 4):
        store = IndexStore.open(tmp_path / "i")
        assert len(store.snapshot.segments) == 40
        assert_holds(store.snapshot, model)
        with store.writer() as writer:
            apply(writer, put(100, 3))
        assert_holds(store.snapshot, applied(model, put(100, 3)))


def test_a_read_only_folder_is_searched_but_not_written(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=2m") as is_mounted:
        path = tmp_path / "disk" / "i"
        model = new_index(path, [put(0, 5)])
        if is_mounted:
            remounted_read_only(tmp_path / "disk")
        else:
            (path / "LOCK").chmod(0o444)
            path.chmod(0o555)
        assert_holds(IndexStore.open(path).snapshot, model)
        if is_mounted or os.geteuid() != 0:  # nothing else stops the superuser
            with (
                pytest.raises(IndexStoreError, match=r"cannot be written: .*LOCK"),
                IndexStore.open(path).writer(),
            ):
                pass
            with pytest.raises(IndexStoreError, match="No index can be made at"):
                IndexStore.create(path.parent / ("j" if is_mounted else "i/j"), EMPTY)
        path.chmod(0o755) if not is_mounted else None


@pytest.mark.thorough
def test_of_eight_writers_at_once_one_writes_and_seven_are_refused_by_name(tmp_path: Path) -> None:
    new_index(tmp_path / "i", [put(0, 5)])
    code = (
        "import sys; from sbert_search.index.store import IndexStore\n"
        "from sbert_search.errors import IndexLocked\n"
        f"store = IndexStore.open({str(tmp_path / 'i')!r})\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n"
        "    with store.writer() as writer:\n"
        "        print('wrote', flush=True); sys.stdin.readline()\n"
        "except IndexLocked as error: print(error, flush=True)\n"
    )
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    for one in crowd:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in crowd:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    answers = [one.stdout.readline() for one in crowd if one.stdout is not None]
    [winner] = [one for one, answer in zip(crowd, answers, strict=True) if answer == "wrote\n"]
    assert sum(f"is being written by process {winner.pid} " in a for a in answers) == 7
    for one in crowd:
        one.communicate("\n")


@pytest.mark.thorough
def test_a_killed_writer_leaves_the_lock_free(tmp_path: Path) -> None:
    new_index(tmp_path / "i", [put(0, 5)])
    code = (
        "import sys; from sbert_search.index.store import IndexStore\n"
        f"with IndexStore.open({str(tmp_path / 'i')!r}).writer():\n"
        "    print('wrote', flush=True); sys.stdin.readline()\n"
    )
    for _ in range(HOLDERS):
        holder = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"wrote\n"
        holder.kill()
        begun = time.monotonic()
        with IndexStore.open(tmp_path / "i", wait_s=30).writer():
            free_after_s.append(time.monotonic() - begun)
        holder.communicate()
    keep_result("index_lock", {"killed": HOLDERS, "longest_until_free_s": max(free_after_s)})
