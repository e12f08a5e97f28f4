"""A folder held open: what is in it is reached through its descriptor, and never through a link.

A path can come to name another folder between two steps: it is moved, replaced, or made a link. A
descriptor cannot. What is below a `Folder` is named by an `Entry`, which the functions of
`runtime/disk/files.py` take in the place of a path.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)

Identity = tuple[int, int]  # device and inode


def identity_of(status: os.stat_result) -> Identity:
    """Return what no other file or folder has for as long as this one is there."""
    return status.st_dev, status.st_ino


class Folder:
    """An open folder and its sub-folders.

    A sub-folder is opened whenever something in it is, never through a link, and must be the one
    that it was the first time. So one descriptor is held, however many files there are.

    Args:
        path: Where it is, absolute; for messages and `is_at_its_path`.
        fd: Its descriptor, closed with this object.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd
        self.identity = identity_of(os.fstat(fd))
        self._seen: dict[str, Identity] = {}
        self._kept: dict[str, int] | None = None  # descriptors of sub-folders, where they are kept
        self.close = weakref.finalize(self, os.close, fd)

    @classmethod
    def open(cls, path: str | Path) -> Folder:
        """Open a folder; the path itself may be a link to it.

        Raises:
            OSError: It is absent, no folder, or may not be read.
        """
        if os.open not in os.supports_dir_fd:
            raise OSError("Windows opens no files relative to a folder; use Linux, macOS or WSL")
        path = Path(path).absolute()
        return cls(path, os.open(path, _FOLDER))

    def __truediv__(self, name: str) -> Entry:
        return Entry(self, name)

    def __str__(self) -> str:
        return str(self.path)

    def is_at_its_path(self) -> bool:
        """Whether the path that it was opened by still leads to it."""
        with contextlib.suppress(OSError):
            return identity_of(os.stat(self.path)) == self.identity
        return False

    def moved_folders(self) -> list[str]:
        """Name the sub-folders that were used and are no longer in their place."""
        return [name for name, seen in self._seen.items() if self._identity(name) != seen]

    def stat(self, name: str) -> os.stat_result:
        """Look at an entry itself, also where it is a link.

        Raises:
            OSError: There is none.
        """
        with self.parent_of(name) as (fd, last):
            return os.stat(last, dir_fd=fd, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Whether there is an entry of this name, be it a link that leads nowhere."""
        return self._identity(name) is not None

    def listing(self, below: str = "") -> dict[str, bool]:
        """Name the entries of this folder, or of a sub-folder, and which are regular files.

        Raises:
            OSError: The sub-folder is absent, a link, or another one than before.
        """
        with self.parent_of(f"{below}/" if below else "") as (fd, _), os.scandir(fd) as entries:
            return {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}

    @contextlib.contextmanager
    def parent_of(self, name: str) -> Iterator[tuple[int, str]]:
        """Give the descriptor of the folder that an entry is in, and its name there.

        Raises:
            OSError: The sub-folder cannot be opened, or what the body raises; with the whole path.
        """
        below, _, last = name.rpartition("/")
        passing = None  # a descriptor for this time alone
        try:
            fd = self.fd
            if below:
                kept = self._kept.get(below) if self._kept is not None else None
                fd = self._open_below(below) if kept is None else kept
                if self._kept is None:
                    passing = fd
                else:
                    self._kept[below] = fd
            yield fd, last
        except OSError as error:
            if error.filename is not None:
                error.filename = str(self.path / name)
            raise
        finally:
            if passing is not None:
                os.close(passing)

    @contextlib.contextmanager
    def kept_open(self, names: Iterable[str] = ()) -> Iterator[Folder]:
        """Give this folder with its sub-folders open from their first use until the end.

        Opening many files in a row is faster so, and no other folder gets the inode of one that
        is open.

        Args:
            names: Sub-folders to open now.
        """
        twin = copy.copy(self)
        kept = twin._kept = {}
        try:
            for name in names:
                with twin.parent_of(f"{name}/"):
                    pass
            yield twin
        finally:
            for fd in kept.values():
                os.close(fd)

    def _open_below(self, name: str) -> int:
        try:
            fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise OSError(
                    error.errno, "A link or file in the place of a folder", name
                ) from None
            raise
        found = identity_of(os.fstat(fd))
        if self._seen.setdefault(name, found) != found:
            os.close(fd)
            raise OSError(errno.ESTALE, "Another folder than before", name)
        return fd

    def _identity(self, name: str) -> Identity | None:
        try:
            return identity_of(self.stat(name))
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class Entry:
    """What an open folder holds, or is to hold, under a name.

    Attributes:
        folder: The folder.
        below: The name in it, as ``seg/000012.vec.npy``.
    """

    folder: Folder
    below: str

    @property
    def path(self) -> Path:
        """Where it was when the folder was opened, for messages."""
        return self.folder.path / self.below

    @property
    def name(self) -> str:
        """The last part of the name."""
        return self.below.rpartition("/")[2]

    @property
    def parent(self) -> Folder | Entry:
        """The folder that it is in."""
        below = self.below.rpartition("/")[0]
        return Entry(self.folder, below) if below else self.folder

    def opened(self) -> Folder:
        """Open the folder of this name, which must not be a link.

        Raises:
            OSError: There is none.
        """
        with self.folder.parent_of(self.below) as (fd, name):
            return Folder(self.path, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=fd))

    def with_name(self, name: str) -> Entry:
        """Return the entry of another name beside this one."""
        below = self.below.rpartition("/")[0]
        return Entry(self.folder, f"{below}/{name}" if below else name)

    def __str__(self) -> str:
        return str(self.path)


Place = Path | Entry
AnyFolder = Path | Entry | Folder


@contextlib.contextmanager
def parent_of(place: Place) -> Iterator[tuple[int | None, str | Path]]:
    """Give what ``os`` functions take as ``dir_fd`` and path."""
    if isinstance(place, Entry):
        with place.folder.parent_of(place.below) as at:
            yield at
    else:
        yield None, place
