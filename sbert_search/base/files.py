"""Durable writes, through which every file is written; memory-mapped reads, temporary folders.

Every change of these files is one call of a `Disk` method, so a test can replace the `Disk` object
by one that fails at the n-th call. A new file has no effect until a manifest (the list of the files
of an index) refers to it, or until its temporary folder is renamed. A failed fsync is never
repeated: the kernel may have dropped the data, and a second call could report success.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from io import RawIOBase
from pathlib import Path
from typing import Any

import xxhash

from sbert_search.base.folders import AnyFolder, Entry, Folder, Place, identity_of, parent_of

_FAILED = ctypes.c_void_p(-1).value


def map_descriptor(fd: int, n_bytes: int) -> memoryview:
    """Map the first ``n_bytes`` of an open file into memory; its descriptor can then be closed."""
    import numpy as np  # a command that maps no file need not load it

    return np.asarray(_Mapping(fd, n_bytes)).data


class _Mapping:
    """Owner of a mapping; NumPy arrays and views keep it alive through the array interface."""

    def __init__(self, fd: int, n_bytes: int) -> None:
        libc = _libc()
        address = libc.mmap(None, n_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._range, self._unmap = (address, n_bytes), libc.munmap
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (n_bytes,),
            "data": (address, True),  # read only
        }

    def __del__(self) -> None:
        if hasattr(self, "_range"):
            self._unmap(*self._range)


@cache
def _libc() -> ctypes.CDLL:
    """Load the C library, whose ``mmap`` keeps no descriptor.

    Python's keeps one (from 3.13 on, not with ``trackfd=False``), and an index can have more files
    than a process may open: a build of 64 segments has 384 files, and macOS allows 256.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    ints = (ctypes.c_int,) * 3  # protection, flags, descriptor
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *ints, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


_READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
PACK_ALIGNMENT = 64  # the files in a pack begin at multiples of so many bytes
BUFFER_BYTES = 1 << 20  # small writes are buffered up to this size; larger writes are split


class Disk:
    """The operations that change files and folders on disk, one change per method."""

    def open_new(self, place: Place) -> int:
        """Create a file that must not exist and return its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with parent_of(place) as (fd, name):
            return os.open(name, flags, 0o644, dir_fd=fd)

    def open_append(self, path: Path) -> int:
        """Open a file for appending, created if absent, and return its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        return os.open(path, flags, 0o644)

    def truncate(self, path: Path, n_bytes: int) -> None:
        """Truncate a file."""
        os.truncate(path, n_bytes)

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of the data; return the number of bytes written, as `os.write` does."""
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        """Make the written bytes of a file durable."""
        os.fsync(fd)

    def fsync_folder(self, place: AnyFolder) -> None:
        """Make new, renamed and removed entries of a folder durable."""
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
        """Rename atomically, replacing an existing target."""
        with parent_of(source) as (from_fd, old), parent_of(target) as (to_fd, new):
            os.replace(old, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)

    def link(self, source: Place, target: Place) -> None:
        """Create a hard link."""
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
    """Use another `Disk` for all writes in the context; tests use one whose methods fail."""
    global disk
    previous, disk = disk, replacement
    try:
        yield
    finally:
        disk = previous


class NewFile(RawIOBase):
    """A new file, with its size and xxh3_128 digest.

    Its bytes are durable once the context exits without an error; its name, once the caller has
    called `Disk.fsync_folder`. After an exception the partial file stays for a later clean-up.

    With a ``pack``, the bytes are appended to the pack instead, once the context exits; ``offset``
    is then the position of the first one.
    """

    def __init__(self, place: Place, pack: bytearray | None = None) -> None:
        self.place, self._pack = place, pack
        self.n_bytes = self.offset = 0
        self._buffer = bytearray()
        self._hash = xxhash.xxh3_128()
        if pack is None:
            self._fd = disk.open_new(place)
            self._identity = identity_of(os.fstat(self._fd))

    @property
    def digest(self) -> str:
        """xxh3_128 of the written bytes, in hexadecimal."""
        return self._hash.hexdigest()

    def is_in_place(self) -> bool:
        """Whether ``place`` still names this file."""
        with contextlib.suppress(OSError), parent_of(self.place) as (folder_fd, name):
            status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            return identity_of(status) == self._identity
        return False

    def writable(self) -> bool:
        """Return True, as file objects do."""
        return True

    def tell(self) -> int:
        """Return the number of bytes accepted by `write`."""
        return self.n_bytes

    def write(self, data: Any) -> int:
        """Write all of the data, or add them to the buffer; return the number of bytes."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self.n_bytes += len(view)
        if len(self._buffer) + len(view) < BUFFER_BYTES or self._pack is not None:
            self._buffer += view
        else:
            self._write_through(self._buffer)
            self._buffer = bytearray()
            self._write_through(view)
        return len(view)

    def _write_through(self, data: bytearray | memoryview) -> None:
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                step = disk.write(self._fd, view[done : done + BUFFER_BYTES])
                if step <= 0:
                    raise OSError(f"{self.place}: the disk accepted no more bytes.")
                done += step

    def flush(self) -> None:
        """Do nothing: the buffer is written when the context exits."""

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._pack is not None and kind is None:
                self.offset = len(self._pack)
                self._pack += self._buffer + bytes(-len(self._buffer) % PACK_ALIGNMENT)
            elif kind is None:
                self._write_through(self._buffer)
                disk.fsync(self._fd)
        finally:
            if self._pack is None:
                os.close(self._fd)
            super().close()


def pack_header(n_bytes: int) -> bytes:
    """Return the first bytes of a pack of a size; they state the size, as no hash covers it."""
    return b"SBSPACK1" + n_bytes.to_bytes(8, "little") + bytes(PACK_ALIGNMENT - 16)


def write_new(place: Place, data: bytes | memoryview) -> NewFile:
    """Write a small new file durably; the returned object has its size and digest."""
    with NewFile(place) as file:
        file.write(data)
    return file


class ReplaceUnknown(OSError):  # noqa: N818 (each subpackage turns it into an error of its own)
    """A replacement failed at or after the rename: the file may have its old or new content."""


@contextlib.contextmanager
def replacing(
    place: Place, *, ready: Callable[[], object] | None = None, ending: str = ".tmp"
) -> Iterator[NewFile]:
    """Write a temporary file, and rename it over ``place`` once it is durable.

    ``ready`` is called right before the rename; if it raises, the old file stays. ``ending`` is
    appended to the name of ``place``. Of two processes that write one temporary file, the first
    gets an OSError. An OSError means that nothing has changed, except for `ReplaceUnknown`.
    """
    if isinstance(place, Path) and place.exists() and not place.is_file():
        raise OSError(errno.EINVAL, "Not a regular file", str(place))
    temporary = place.with_name(place.name + ending)
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary)
    file = NewFile(temporary)
    try:
        with file:
            yield file
        if ready:
            ready()
        if not file.is_in_place():
            raise OSError(errno.EBUSY, "Another process writes the same file", str(place))
    except BaseException:
        if file.is_in_place():
            with contextlib.suppress(OSError):
                disk.unlink(temporary)
        raise
    try:
        disk.replace(temporary, place)
        disk.fsync_folder(place.parent)
    except OSError as error:
        raise ReplaceUnknown(error.errno, f"{place} may or may not be replaced: {error}") from error


def replace_file(place: Place, data: bytes, *, ready: Callable[[], object] | None = None) -> None:
    """Replace a small file atomically and durably, as `replacing` does."""
    with replacing(place, ready=ready) as file:
        file.write(data)


class LineLog:
    """A file of lines, appended durably; of an existing file, the first ``keep`` lines stay."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        self.path = path
        if keep == 0:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(path)
        elif path.exists():
            with path.open("rb") as file:
                disk.truncate(path, sum(map(len, itertools.islice(file, keep))))

    def append(self, lines: Sequence[str]) -> None:
        """Append lines, given without newlines, durably."""
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
    """Remove a file, or a folder with its contents, if it exists; links are not followed."""
    if not path.is_dir() or path.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)
        return
    for entry in sorted(path.iterdir()):
        remove_tree(entry)
    disk.remove_folder(path)


def open_lock(place: Place) -> int:
    """Open a regular file, but no link, for locking, created if absent; return its descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with parent_of(place) as (folder_fd, name):
        fd = os.open(name, flags, 0o644, dir_fd=folder_fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "Not a regular file", name)
        return fd


def is_fault_of_file(error: OSError) -> bool:
    """Whether a read error is due to the file, not to missing permission, memory or descriptors."""
    process = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    return error.errno not in process


def xxh3_128_of(path: Path) -> str:
    """Return the xxh3_128 of a file, in hexadecimal, in bounded memory."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def map_file(path: Place) -> memoryview:
    """Map a regular file, not a link, into memory, without keeping a descriptor open."""
    with parent_of(path) as (folder_fd, name):
        fd = os.open(name, _READING, dir_fd=folder_fd)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        if status.st_size == 0:
            return memoryview(b"")  # mmap refuses a length of 0
        return map_descriptor(fd, status.st_size)
    finally:
        os.close(fd)


def xxh3_128_of_view(view: memoryview) -> str:
    """Return the xxh3_128 of mapped bytes, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(view)


class TemporaryFolder:
    """An empty folder that is removed on request, or when this object or the process ends.

    Only the process that made it removes it; `tempfile.TemporaryDirectory` would in a fork, too.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="sbert-search-"))
        self._finalizer = weakref.finalize(self, _remove, os.getpid(), self.path)

    def remove(self) -> None:
        """Remove the folder now; in a forked process, this does nothing."""
        self._finalizer()


def _remove(process: int, path: Path) -> None:
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            remove_tree(path)
