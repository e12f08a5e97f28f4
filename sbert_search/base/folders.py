"""Access files through an open folder, never through a link; refuse outputs that are inputs.

While this process works in a folder, another process can move the folder or replace it by a link.
An open descriptor still leads to the same folder, the path does not.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from sbert_search.errors import ConfigError

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)

Identity = tuple[int, int]  # device and inode


def identity_of(status: os.stat_result) -> Identity:
    """Return device and inode, which are unique while the file or folder exists."""
    return status.st_dev, status.st_ino


class Folder:
    """An open folder and its sub-folders; the path is for messages and `is_at_its_path`.

    Only the descriptor of the folder itself stays open, until this object ends. A sub-folder is
    opened for each access, never through a link, and must be the same folder as at its first
    access.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd
        self.identity = identity_of(os.fstat(fd))
        self._seen: dict[str, Identity] = {}  # identity of each sub-folder at its first access
        self._kept: dict[str, int] | None = None  # descriptors of sub-folders, within `kept_open`
        self.close = weakref.finalize(self, os.close, fd)

    @classmethod
    def open(cls, path: str | Path) -> Folder:
        """Open a folder; the path may be a link to the folder."""
        if os.open not in os.supports_dir_fd:
            raise OSError("Windows opens no files relative to a folder; use Linux, macOS or WSL")
        path = Path(path).absolute()
        return cls(path, os.open(path, _FOLDER))

    def __truediv__(self, name: str) -> Entry:
        return Entry(self, name)

    def __str__(self) -> str:
        return str(self.path)

    def is_at_its_path(self) -> bool:
        """Whether the path still leads to this folder."""
        with contextlib.suppress(OSError):
            return identity_of(os.stat(self.path)) == self.identity
        return False

    def moved_folders(self) -> list[str]:
        """Return the sub-folders that were accessed and have since been moved or replaced."""
        return [name for name, seen in self._seen.items() if self._identity(name) != seen]

    def stat(self, name: str) -> os.stat_result:
        """Return the status of an entry; of a link, the status of the link itself."""
        with self.parent_of(name) as (fd, last):
            return os.stat(last, dir_fd=fd, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Whether an entry of this name exists; a broken link counts."""
        return self._identity(name) is not None

    def listing(self, below: str = "") -> dict[str, bool]:
        """Map each name in this folder, or in a sub-folder, to whether it is a regular file."""
        with self.parent_of(f"{below}/" if below else "") as (fd, _), os.scandir(fd) as entries:
            return {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}

    @contextlib.contextmanager
    def parent_of(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of the folder that contains an entry, and the entry's name in it.

        An OSError of the body is raised again, with the full path as its ``filename``.
        """
        below, _, last = name.rpartition("/")
        temporary = None  # a descriptor for this access only
        try:
            fd = self.fd
            if below:
                kept = self._kept.get(below) if self._kept is not None else None
                fd = self._open_below(below) if kept is None else kept
                if self._kept is None:
                    temporary = fd
                else:
                    self._kept[below] = fd
            yield fd, last
        except OSError as error:
            if error.filename is not None:
                error.filename = str(self.path / name)
            raise
        finally:
            if temporary is not None:
                os.close(temporary)

    @contextlib.contextmanager
    def kept_open(self, names: Iterable[str] = ()) -> Iterator[Folder]:
        """Yield a copy of this folder that keeps sub-folders open until the context ends.

        This makes opening many files faster. And no new folder can get the inode of an open one and
        be mistaken for it. The sub-folders ``names`` are opened now.
        """
        twin = copy.copy(self)
        kept = twin._kept = {}
        try:
            for name in names:
                with twin.parent_of(f"{name}/"):
                    pass
            yield twin
        finally:
            # A later access opens the sub-folder again, since another file may get its number.
            twin._kept = None
            for fd in kept.values():
                os.close(fd)

    def _open_below(self, name: str) -> int:
        try:
            fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                reason = "A link or file where a folder should be"
                raise OSError(error.errno, reason, name) from None
            raise
        identity = identity_of(os.fstat(fd))
        if self._seen.setdefault(name, identity) != identity:
            os.close(fd)
            raise OSError(errno.ESTALE, "Not the same folder as before", name)
        return fd

    def _identity(self, name: str) -> Identity | None:
        with contextlib.suppress(FileNotFoundError):
            return identity_of(self.stat(name))
        return None


class Entry(NamedTuple):
    """A name below an open folder; the file need not exist."""

    folder: Folder
    below: str  # relative to the folder, such as seg/000012.vec.npy

    @property
    def path(self) -> Path:
        """The path of the entry at the time when the folder was opened, for messages."""
        return self.folder.path / self.below

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.below.rpartition("/")[2]

    @property
    def parent(self) -> Folder | Entry:
        """The folder that contains the entry."""
        below = self.below.rpartition("/")[0]
        return Entry(self.folder, below) if below else self.folder

    def opened(self) -> Folder:
        """Open the folder that this entry names; it must not be a link."""
        with self.folder.parent_of(self.below) as (fd, name):
            return Folder(self.path, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=fd))

    def with_name(self, name: str) -> Entry:
        """Return an entry with another name in the same folder."""
        below = self.below.rpartition("/")[0]
        return Entry(self.folder, f"{below}/{name}" if below else name)

    def __str__(self) -> str:
        return str(self.path)


Place = Path | Entry  # the name of a file or folder
AnyFolder = Path | Entry | Folder


@contextlib.contextmanager
def parent_of(place: Place) -> Iterator[tuple[int | None, str | Path]]:
    """Yield the ``dir_fd`` and path arguments with which ``os`` functions access a place."""
    if isinstance(place, Entry):
        with place.folder.parent_of(place.below) as at:
            yield at
    else:
        yield None, place


def first_same_file(path: Path, others: Iterable[Path]) -> Path | None:
    """Return the first of ``others`` that is the same file as ``path``, also by links, or None."""
    if (own := _identity(path)) is None:
        return None
    return next((other for other in others if _identity(other) == own), None)


def require_apart(output: Path, inputs: Iterable[Path], option: str = "The output") -> None:
    """Refuse to write over an input, or into a folder that is an input.

    The output need not exist. A folder stands for all its files; if only some of them are read,
    pass these files. ``option`` names the output in the message.
    """
    inputs = list(inputs)
    temporary = Path(f"{output}.tmp")  # `files.replacing` writes this file first
    for written in (output, temporary):
        if (input_path := first_same_file(written, inputs)) is not None:
            named = f" ({input_path})" if str(input_path) != str(written) else ""
            raise ConfigError(
                f"{option} would overwrite {written}{named}, which is read. Name another file."
            )
    folders = [path for path in inputs if path.is_dir()]
    inside = Path(os.path.realpath(output.parent))
    for above in (inside, *inside.parents) if folders else ():
        if (input_path := first_same_file(above, folders)) is not None:
            raise ConfigError(
                f"{option}, {output}, lies in {input_path}, which is read. Name a path outside."
            )


def require_possible_output(output: Path, option: str = "The output") -> None:
    """Refuse an output path where no file can be written, before the work starts."""
    if output.is_dir():
        raise ConfigError(f"{option}: {output} is a folder. Name a file.")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{option}: {output.parent} is not a folder. Create it first.")


def _identity(path: Path) -> Identity | None:
    with contextlib.suppress(OSError, ValueError):
        return identity_of(os.stat(path))
    return None
