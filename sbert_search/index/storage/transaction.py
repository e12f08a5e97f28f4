"""The lock of an index, and commits: files under unused names, then a new manifest.

Until the manifest is replaced, the old state is intact and the new files can be removed. If a
failed commit leaves some of its files, they are in no manifest, so a later writer removes them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import stat
import time
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.base.arrays import header
from sbert_search.base.folders import Folder
from sbert_search.base.locks import Lock
from sbert_search.errors import CommitUnknown, CorruptIndex, IndexStoreError
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import (
    FOLDERS,
    FileRecord,
    Manifest,
    TombstoneRecord,
)

Stamp = tuple[int, int, int]  # inode, modification time and size of a file


class HeldFolder:
    """The opened folder of an index and the lock that its writer holds.

    All files are written to the opened folder, even if its path has come to name another folder.
    The lock alone is not enough, since another program may move or replace the folder meanwhile:
    before each commit, `require` refuses that, and a lock or manifest that was replaced.

    ``kept`` is the folder with open sub-folders, through which files are written; states that
    outlive the writer are opened in ``folder``.
    """

    def __init__(self, folder: Folder, lock: Lock, kept: Folder | None = None) -> None:
        self.folder, self._lock = folder, lock
        self.kept = kept or folder
        self._manifest = self._stamp(manifests.NAME)
        self._next: Stamp | None = None

    @property
    def parts(self) -> tuple[HeldFolder, ...]:
        """The folders to write to: this one; a sharded index has one for each shard."""
        return (self,)

    def require(self) -> None:
        """Refuse to commit if the folder, a sub-folder, the lock or the manifest was replaced."""
        problem = self.problem
        if not problem and not self.folder.is_at_its_path():
            problem = f"{self.folder} was moved, removed or replaced"
        if problem:
            raise IndexStoreError(
                f"{problem} while the index was written, so this commit was not made. Earlier "
                "commits are in the folder that was opened, wherever it is now. Find out which "
                "program changed the folder, then run the command again."
            )
        self._next = self._stamp(manifests.TEMPORARY)

    def write_manifest(self, manifest: Manifest) -> None:
        """Commit by replacing the manifest; later checks expect the new manifest in its place.

        After `OSError` or `IndexStoreError` the old state holds, after `CommitUnknown` the old or
        the new.
        """
        manifests.write(self.folder, manifest, ready=self.require)
        self._manifest = self._next

    def removable(self, names: Iterable[str]) -> Iterable[str]:
        """Return the files that may be removed now, here all; a shard waits for the others."""
        return names

    @property
    def problem(self) -> str:
        """What was removed, replaced or moved inside the folder; "" if nothing."""
        if not self._lock.is_in_place():
            return f"{self.folder / manifests.LOCK} was removed or replaced"
        if moved := self.folder.moved_folders():
            return f"{self.folder / moved[0]} was moved, removed or replaced"
        if self._stamp(manifests.NAME) != self._manifest:
            return f"{self.folder / manifests.NAME} was removed or replaced"
        return ""

    def _stamp(self, name: str) -> Stamp | None:
        try:
            status = self.folder.stat(name)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


GRACE_S = 600.0  # minimum age in seconds of unreferenced files that are removed

_NUMBERED = re.compile(r"\w+/(\d{6,12})\.")


PACK_BYTES = 1 << 20  # more bytes are not written as a pack


class Transaction:
    """Writes the files of a commit and then commits them; made by `transaction`."""

    def __init__(self, held_folder: HeldFolder, old: Manifest) -> None:
        self.folder, self.old = held_folder.kept, old  # `old`: the state before the commit
        taken = [number_of(name) for name in numbered_names(self.folder)]
        self.first_number = self.next_number = max([old.next_file, *(n + 1 for n in taken)])
        self.committed: Manifest | None = None  # the new state, after the commit
        self._held_folder = held_folder
        self._may_be_committed = False
        self._pack: bytearray | None = None
        self._pack_name = ""
        self._changed: set[str] = set()  # sub-folders with new files

    def new_number(self) -> int:
        """Return an unused file number."""
        self.next_number += 1
        return self.next_number - 1

    def new_file(self, name: str) -> files.NewFile:
        """Begin a new file; within `packed` it becomes a part of the pack."""
        if self._pack is not None:
            return files.NewFile(self.folder / f"{self._pack_name}:{name}", self._pack)
        self._changed.add(name.partition("/")[0])
        return files.NewFile(self.folder / name)

    def write_array(self, name: str, array: NDArray[np.generic]) -> FileRecord:
        """Write an array as a new file."""
        with self.new_file(name) as file:
            file.write(header(array.dtype, array.shape))
            file.write(np.ascontiguousarray(array))
        return FileRecord.of(file)

    @contextlib.contextmanager
    def packed(self, n_bytes: int) -> Iterator[None]:
        """Write the new files of the context as one, if they have few bytes: one fsync then does.

        They cannot be read before the context exits.
        """
        if self._pack is not None or n_bytes > PACK_BYTES:
            yield
            return
        name = f"seg/{self.new_number():06d}.pack"
        self._pack_name, self._pack = name, bytearray(files.pack_header(0))
        try:
            yield
            pack = self._pack
        finally:
            self._pack = None
        if len(pack) > files.PACK_ALIGNMENT:
            pack[: files.PACK_ALIGNMENT] = files.pack_header(len(pack))
            with self.new_file(name) as file:
                file.write(pack)

    def write_tombstones(self, rows: NDArray[np.int64], n_docs: int) -> TombstoneRecord:
        """Write the tombstones of some rows, int64 (n,), which belong to ``n_docs`` documents."""
        file = self.write_array(f"del/{self.new_number():06d}.npy", np.sort(rows))
        return TombstoneRecord(n_rows=len(rows), n_docs=n_docs, file=file)

    def commit(self, new: Manifest) -> None:
        """Make the new state durable and current; errors as for `HeldFolder.write_manifest`."""
        for name in sorted(self._changed):
            files.disk.fsync_folder(self.folder / name)
        new = dataclasses.replace(
            new,
            generation=self.old.generation + 1,
            next_file=self.next_number,
        )
        # Set before the manifest is replaced, since an interrupt of the replacement may leave the
        # new manifest in place. `undo` must then keep the new files.
        self._may_be_committed = True
        try:
            self._held_folder.write_manifest(new)
        except CommitUnknown:
            raise
        except (OSError, IndexStoreError):
            self._may_be_committed = False
            raise
        self.committed = new

    def remove(self, names: Iterable[str]) -> list[str]:
        """Remove unreferenced files; return their names."""
        return remove(self._held_folder, names)

    def undo(self) -> None:
        """Remove the new files, as far as the disk allows, unless a manifest may refer to them."""
        if not self._may_be_committed:
            with contextlib.suppress(OSError, IndexStoreError):
                names = numbered_names(self.folder)
                self.remove(name for name in names if number_of(name) >= self.first_number)


@contextlib.contextmanager
def transaction(held_folder: HeldFolder, old: Manifest) -> Iterator[Transaction]:
    """Write files and commit them, or leave the index as it was.

    After `CommitUnknown` the old or the new state holds, and the new files stay.
    """
    work = Transaction(held_folder, old)
    try:
        yield work
    except CommitUnknown:
        raise
    except OSError as error:
        work.undo()
        raise IndexStoreError(
            f"{held_folder.folder}: writing failed, {error}. The index is as it was before this "
            "commit; free or repair the disk and run the command again."
        ) from error
    except BaseException:
        work.undo()
        raise


def require_files(folder: Folder, manifest: Manifest) -> None:
    """Refuse to write to a state that has lost files that cannot be rebuilt.

    The snapshot does not notice lost files: a mapped file can be read after it was removed.
    """
    present, derived = set(numbered_names(folder)), set(manifest.derived)
    for file in manifest.files:
        if file.on_disk not in present and file not in derived:
            raise CorruptIndex(file.name, "the file", "no such file")


def remove_unreferenced(
    held_folder: HeldFolder, manifest: Manifest, *, grace_s: float = GRACE_S
) -> list[str]:
    """Remove files, at least ``grace_s`` old, that the manifest lacks; return their names."""
    needed = {file.on_disk for file in manifest.files}
    strays = [manifests.TEMPORARY, *numbered_names(held_folder.kept)]
    return remove(held_folder, [name for name in strays if name not in needed], grace_s=grace_s)


def remove(held_folder: HeldFolder, names: Iterable[str], *, grace_s: float = 0.0) -> list[str]:
    """Remove unreferenced files, while lock and folder are in place; return their names.

    Files that cannot be removed are left to the next writer. Only regular files that are at least
    ``grace_s`` old are removed. A file with a time in the future counts as old: such a time means
    that the clock was set back.
    """
    removed: list[str] = []
    for name in held_folder.removable(names):
        with contextlib.suppress(OSError):
            status = held_folder.kept.stat(name)
            young = 0 <= time.time() - status.st_mtime < grace_s
            if young or not stat.S_ISREG(status.st_mode):
                continue
            if held_folder.problem:
                break
            files.disk.unlink(held_folder.kept / name)
            removed.append(name)
    return removed


def numbered_names(folder: Folder) -> list[str]:
    """List the files in an index's sub-folders whose names match `manifest.FILE_NAME`, sorted."""
    names = (f"{below}/{name}" for below in FOLDERS for name in _names(folder, below))
    return sorted(name for name in names if manifests.FILE_NAME.fullmatch(name))


def number_of(name: str) -> int:
    """Return the number in a file's name."""
    match = _NUMBERED.match(name)
    assert match is not None
    return int(match.group(1))


def _names(folder: Folder, below: str) -> list[str]:
    try:
        return list(folder.listing(below))
    except FileNotFoundError:  # a program that copies only files leaves out an empty folder
        return []
    except OSError as error:
        raise IndexStoreError(f"{folder / below} cannot be read: {error}.") from error
