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
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Any

import xxhash

from sbert_search.runtime.disk.folders import AnyFolder, Entry, Folder, Place, parent_of
from sbert_search.runtime.disk.mapping import mapped

_READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
BUFFER_BYTES = 1 << 20  # small writes gather to this size; large ones go through in such steps


class Disk:
    """The operations that change a disk, one method a step.

    A place is a path, or an entry of a folder that is held open.
    """

    def open_new(self, place: Place) -> int:
        """Create a file that must not exist and return its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with parent_of(place) as (fd, name):
            return os.open(name, flags, 0o644, dir_fd=fd)

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

    def fsync_folder(self, place: AnyFolder) -> None:
        """Make a folder's entries durable."""
        if isinstance(place, Folder):
            os.fsync(place.fd)
        elif isinstance(place, Entry):
            with place.folder.parent_of(f"{place.below}/") as (fd, _):
                os.fsync(fd)
        else:
            fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def make_folder(self, place: Place) -> None:
        """Create one folder that must not exist."""
        with parent_of(place) as (fd, name):
            os.mkdir(name, dir_fd=fd)

    def replace(self, source: Place, target: Place) -> None:
        """Rename atomically, over an existing target if there is one."""
        with parent_of(source) as (from_fd, old), parent_of(target) as (to_fd, new):
            os.replace(old, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)

    def link(self, source: Place, target: Place) -> None:
        """Give a file a second name."""
        with parent_of(source) as (from_fd, old), parent_of(target) as (to_fd, new):
            os.link(old, new, src_dir_fd=from_fd, dst_dir_fd=to_fd, follow_symlinks=False)

    def unlink(self, place: Place) -> None:
        """Remove a file."""
        with parent_of(place) as (fd, name):
            os.unlink(name, dir_fd=fd)

    def remove_folder(self, place: Place) -> None:
        """Remove an empty folder."""
        with parent_of(place) as (fd, name):
            os.rmdir(name, dir_fd=fd)


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

    def __init__(self, place: Place) -> None:
        self.place = place
        self.n_bytes = 0
        self._waiting = bytearray()
        self._hash = xxhash.xxh3_128()
        self._fd = disk.open_new(place)

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
                    raise OSError(f"{self.place}: the disk took no more bytes.")
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


def write_new(place: Place, data: bytes | memoryview) -> NewFile:
    """Write a small new file durably; the result has its size and digest."""
    with NewFile(place) as file:
        file.write(data)
    return file


class ReplaceUnknown(OSError):  # noqa: N818 (each room turns it into an error of its own)
    """A swap failed at or after the rename: the old or the new content may be there."""


@contextlib.contextmanager
def replacing(place: Place, *, ready: Callable[[], object] | None = None) -> Iterator[NewFile]:
    """Write a file that takes its name, or an older one's place, once all of it is durable.

    Args:
        place: Its name.
        ready: Called right before the swap; what it raises leaves everything as it was.

    Raises:
        OSError: Nothing has changed. A folder, a device or a named pipe is not replaced.
        ReplaceUnknown: Look at the disk to see whether the old or the new content is there.
    """
    if isinstance(place, Path) and place.exists() and not place.is_file():
        raise OSError(errno.EINVAL, "Not a regular file", str(place))
    temporary = place.with_name(place.name + ".tmp")
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary)
    try:
        with NewFile(temporary) as file:
            yield file
        if ready:
            ready()
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    try:
        disk.replace(temporary, place)
        disk.fsync_folder(place.parent)
    except OSError as error:
        raise ReplaceUnknown(error.errno, f"{place} may or may not be swapped: {error}") from error


def replace_file(place: Place, data: bytes, *, ready: Callable[[], object] | None = None) -> None:
    """Swap a small file's content atomically and durably; arguments and errors as `replacing`."""
    with replacing(place, ready=ready) as file:
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


def open_lock(place: Place) -> int:
    """Open a regular file to lock, made if absent, and return its descriptor.

    Raises:
        OSError: It cannot be made, or is a link or a pipe.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with parent_of(place) as (folder_fd, name):
        fd = os.open(name, flags, 0o644, dir_fd=folder_fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "No regular file", name)
        return fd


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


def map_file(path: Place) -> memoryview:
    """Map a regular file for reading, without a descriptor; an empty file gives an empty view.

    Raises:
        OSError: It is absent, a link, or no regular file.
    """
    with parent_of(path) as (folder_fd, name):
        fd = os.open(name, _READING, dir_fd=folder_fd)
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
