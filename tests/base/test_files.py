"""The writer of disk: exclusive creation, true digests, short writes finished."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from sbert_search.base import files


class OneByteDisk(files.Disk):
    """A disk that takes one byte at a time, as a disk may."""

    def write(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data[:1])


def test_new_file_knows_size_and_digest_even_through_short_writes(tmp_path: Path) -> None:
    with files.use_disk(OneByteDisk()):
        written = files.write_new(tmp_path / "a", b"hello")
    assert (tmp_path / "a").read_bytes() == b"hello"
    assert written.n_bytes == 5
    assert written.digest == xxhash.xxh3_128_hexdigest(b"hello")
    assert written.digest == files.xxh3_128_of(tmp_path / "a")


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    files.write_new(tmp_path / "a", b"old")
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"


def test_replace_swaps_content_and_clears_an_old_temporary(tmp_path: Path) -> None:
    (tmp_path / "m.tmp").write_bytes(b"left by a killed writer")
    files.replace_file(tmp_path / "m", b"1")
    files.replace_file(tmp_path / "m", b"2")
    assert (tmp_path / "m").read_bytes() == b"2"
    assert not (tmp_path / "m.tmp").exists()


def replace_beside(path: Path, second: contextlib.ExitStack, then: Callable[[], object]) -> None:
    """Replace a file while a second process, which began later, does the same."""
    with files.replacing(path) as file:
        file.write(b"first")
        second.enter_context(files.replacing(path)).write(b"second")
        then()


@pytest.mark.parametrize("second_is_faster", [False, True])
def test_the_half_of_another_process_is_not_published(
    tmp_path: Path, second_is_faster: bool
) -> None:
    path, second = tmp_path / "m", contextlib.ExitStack()
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="Another process writes the same file"):
        replace_beside(path, second, second.close if second_is_faster else list)
    assert path.read_bytes() == (b"second" if second_is_faster else b"old")
    second.close()
    assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["m"]


def test_an_error_removes_no_file_of_another_process(tmp_path: Path) -> None:
    path, second = tmp_path / "m", contextlib.ExitStack()
    with pytest.raises(ValueError, match="invalid"):
        replace_beside(path, second, lambda: int("invalid"))
    second.close()
    assert path.read_bytes() == b"second"


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to a device"])
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    """As root, `--out /dev/null` would make a file of it for all programs."""
    target = tmp_path / "target"
    if kind == "folder":
        target.mkdir()
    elif kind == "pipe":
        os.mkfifo(target)
    else:
        target.symlink_to("/dev/null")

    def identity() -> tuple[int, ...]:
        status = os.lstat(target)  # not the time of access: following a link may change it
        return status.st_mode, status.st_ino, status.st_rdev, status.st_ctime_ns

    before = identity()
    with pytest.raises(OSError, match="Not a regular file"):
        files.replace_file(target, b"1")
    assert identity() == before
    assert os.listdir(tmp_path) == ["target"]
