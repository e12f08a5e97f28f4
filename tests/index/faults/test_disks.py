"""Real limits: a disk that is full, a folder that cannot be written, writers in a crowd."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbert_search.errors import IndexStoreError
from sbert_search.index.check import check
from sbert_search.index.store import IndexStore
from tests.faults import keep_result
from tests.index.faults.model import (
    SETTINGS,
    Model,
    Operation,
    applied,
    apply,
    assert_holds,
    new_index,
)


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


@contextlib.contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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


def test_a_full_disk_stops_the_commit_and_keeps_all_before(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=2m") as is_mounted:
        path = tmp_path / "disk" / "i"
        model = new_index(path, [put(1000, 5)])
        with contextlib.nullcontext() if is_mounted else largest_file(40_000):
            model, message = fill(path, model)
        assert ("No space left" if is_mounted else "File too large") in message
        assert "is as it was before this commit; see to the disk" in message
        assert len(model) > 100
        assert_holds(IndexStore.open(path).snapshot, model)
        assert check(path).problems == ()
        with IndexStore.open(path).writer() as writer:
            writer.delete(["1000-0"])
        keep_result("index_full_disk", {"real_disk": is_mounted, "documents_kept": len(model)})


def test_a_size_limit_stops_the_commit_and_keeps_all_before(tmp_path: Path) -> None:
    model = new_index(tmp_path / "i", [put(1000, 5)])
    with largest_file(40_000):
        model, message = fill(tmp_path / "i", model)
    assert "File too large" in message
    assert_holds(IndexStore.open(tmp_path / "i").snapshot, model)


def test_a_read_only_folder_is_searched_but_not_written(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=2m") as is_mounted:
        path = tmp_path / "disk" / "i"
        model = new_index(path, [put(0, 5)])
        if is_mounted:
            remount = ["mount", "-o", "remount,ro", str(tmp_path / "disk")]
            subprocess.run(remount, check=True)
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
                IndexStore.create(path.parent / ("j" if is_mounted else "i/j"), SETTINGS)
        path.chmod(0o755) if not is_mounted else None


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
