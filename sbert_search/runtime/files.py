"""The only writer of indexes, checkpoints and embedding caches.

Every change of the disk is one call of a `Disk` method, so a test can replace the disk and fail the
n-th step. A file is written under its final name, opened exclusively, hashed while it is written,
and fsynced before it is closed; nothing refers to it until a manifest or a folder rename does.
An fsync that failed is never tried again: its data may be gone while a second call reports success.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Any

import xxhash

from sbert_search.runtime.mapping import mapped

BUFFER_BYTES = 1 << 20  # small writes gather to this size; large ones go through in such steps


class Disk:
    """The operations that change a disk, one method a step."""

    def open_new(self, path: Path) -> int:
        """Create a file that must not exist and return its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)

    def open_append(self, path: Path) -> int:
        """Open a log that only grows, made if absent, and return its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        return os.open(path, flags, 0o644)

    def truncate(self, path: Path, n_bytes: int) -> None:
        """Cut a file off."""
        os.truncate(path, n_bytes)

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of the data; return how much, as `os.write`."""
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        """Make a file's bytes durable."""
        os.fsync(fd)

    def fsync_folder(self, path: Path) -> None:
        """Make a folder's entries durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_folder(self, path: Path) -> None:
        """Create one folder that must not exist."""
        path.mkdir()

    def replace(self, source: Path, target: Path) -> None:
        """Rename atomically, over an existing target if there is one."""
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()


disk = Disk()


@contextlib.contextmanager
def use_disk(replacement: Disk) -> Iterator[None]:
    """Send every write through another disk, as fault tests do."""
    global disk
    previous, disk = disk, replacement
    try:
        yield
    finally:
        disk = previous


class NewFile(RawIOBase):
    """A new file that knows its size and xxh3_128 and is durable once closed without an error.

    Used as a context manager; after an exception the file is left as it is, for a later
    clean-up, since nothing refers to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.n_bytes = 0
        self._waiting = bytearray()
        self._hash = xxhash.xxh3_128()
        self._fd = disk.open_new(path)

    @property
    def digest(self) -> str:
        """xxh3_128 of what was written, in hexadecimal."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        """Return True, as file objects do."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.n_bytes

    def write(self, data: Any) -> int:
        """Take all of the data; small pieces wait in memory until there are enough of them."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self.n_bytes += len(view)
        if len(self._waiting) + len(view) < BUFFER_BYTES:
            self._waiting += view
        else:
            self._write_through(self._waiting)
            self._waiting = bytearray()
            self._write_through(view)
        return len(view)

    def _write_through(self, data: bytearray | memoryview) -> None:
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                step = disk.write(self._fd, view[done : done + BUFFER_BYTES])
                if step <= 0:
                    raise OSError(f"{self.path}: the disk took no more bytes.")
                done += step

    def flush(self) -> None:
        """Do nothing: what still waits is written when the file ends."""

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._write_through(self._waiting)
                disk.fsync(self._fd)
        finally:
            os.close(self._fd)
            super().close()


def write_new(path: Path, data: bytes | memoryview) -> NewFile:
    """Write a small new file durably; the result has its size and digest."""
    with NewFile(path) as file:
        file.write(data)
    return file


class ReplaceUnknown(OSError):  # noqa: N818 (each room turns it into an error of its own)
    """A swap failed at or after the rename: the old or the new content may be there."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[NewFile]:
    """Write a file that takes its name, or an older one's place, once all of it is durable.

    Raises:
        OSError: Nothing has changed. A folder, a device or a named pipe is not replaced.
        ReplaceUnknown: Look at the disk to see whether the old or the new content is there.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    temporary = path.with_name(path.name + ".tmp")
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary)
    try:
        with NewFile(temporary) as file:
            yield file
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    try:
        disk.replace(temporary, path)
        disk.fsync_folder(path.parent)
    except OSError as error:
        raise ReplaceUnknown(error.errno, f"{path} may or may not be swapped: {error}") from error


def replace_file(path: Path, data: bytes) -> None:
    """Swap a small file's content atomically and durably; raises as `replacing`."""
    with replacing(path) as file:
        file.write(data)


class LineLog:
    """A file of lines that grows by durable appends; it is made with the first line.

    Args:
        path: The file.
        keep: Lines of an earlier process that stay, when there are so many; the rest is cut off.
    """

    def __init__(self, path: Path, keep: int = 0) -> None:
        self.path = path
        if keep == 0:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(path)
        elif path.exists():
            with path.open("rb") as file:
                disk.truncate(path, sum(map(len, itertools.islice(file, keep))))

    def append(self, lines: Sequence[str]) -> None:
        """Write lines, each without its newline."""
        if not lines:
            return
        data = memoryview("".join(f"{line}\n" for line in lines).encode())
        fd = disk.open_append(self.path)
        try:
            while data:
                data = data[disk.write(fd, data) :]
            disk.fsync(fd)
        finally:
            os.close(fd)


def remove_tree(path: Path) -> None:
    """Remove a folder and all it holds, without following links; absent is fine."""
    if not path.is_dir() or path.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)
        return
    for entry in sorted(path.iterdir()):
        remove_tree(entry)
    disk.remove_folder(path)


class LockHeld(Exception):  # noqa: N818 (each room turns it into an error of its own)
    """Another process holds the lock; ``pid`` and ``since`` say which and from when, if known."""

    def __init__(self, path: Path, pid: int | None, since: str | None) -> None:
        self.path, self.pid, self.since = path, pid, since
        super().__init__(f"{path} is held by process {pid} since {since}.")


@contextlib.contextmanager
def exclusive_lock(path: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold an flock on a file, which the kernel frees even when this process is killed.

    Args:
        path: The file; made if absent.
        wait_s: How long to wait for another process to let go of it.

    Raises:
        LockHeld: Another process has it.
        OSError: The file cannot be made or locked, as in a read-only folder.
    """
    if sys.platform == "win32":
        raise OSError("Windows is not supported for writing; use Linux, macOS or WSL")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        if not _locks(fd, wait_s):
            holder = _read_holder(fd)
            raise LockHeld(path, holder.get("pid"), holder.get("since"))
        note = json.dumps({"pid": os.getpid(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
        with contextlib.suppress(OSError):  # a full disk: locked all the same, but unnamed
            os.ftruncate(fd, 0)
            os.pwrite(fd, note.encode(), 0)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def _locks(fd: int, wait_s: float) -> bool:
    """Try to lock a file until the time is over; at least once."""
    import fcntl

    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)


def _read_holder(fd: int) -> dict[str, Any]:
    """Read who holds a lock, waiting a moment for one who has only just got it."""
    for _ in range(20):
        with contextlib.suppress(ValueError):
            holder = json.loads(os.pread(fd, 4096, 0))
            return holder if isinstance(holder, dict) else {}
        time.sleep(0.01)
    return {}


def tells_of_the_file(error: OSError) -> bool:
    """Whether a failure to read is about the file, not about rights, memory or descriptors."""
    process = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    return error.errno not in process


def xxh3_128_of(path: Path) -> str:
    """Hash a file in bounded memory."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def map_file(path: Path) -> memoryview:
    """Map a regular file for reading, without a descriptor; an empty file gives an empty view.

    Raises:
        OSError: It is absent, a link, or no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no regular file.")
        if status.st_size == 0:
            return memoryview(b"")
        return mapped(fd, status.st_size)
    finally:
        os.close(fd)


def xxh3_128_of_view(view: memoryview) -> str:
    """Hash mapped bytes."""
    return xxhash.xxh3_128_hexdigest(view)


def check_can_hold_indexes(folder: Path) -> None:
    """Try on a folder what every commit relies on: an atomic rename and a lock between processes.

    Raises:
        OSError: The file system has no such thing, as some network mounts.
    """
    first, second = folder / ".probe-1", folder / ".probe-2"
    for leftover in (first, second):
        leftover.unlink(missing_ok=True)
    try:
        first.write_bytes(b"1")
        second.write_bytes(b"2")
        os.replace(first, second)
        if second.read_bytes() != b"1" or first.exists():
            raise OSError(f"{folder}: renaming over a file does not work on this file system.")
        with exclusive_lock(second):
            _check_lock_excludes(second)
    finally:
        for leftover in (first, second):
            leftover.unlink(missing_ok=True)


def _check_lock_excludes(path: Path) -> None:
    with contextlib.suppress(LockHeld), exclusive_lock(path):
        raise OSError(f"{path.parent}: locks exclude nobody on this file system.")
