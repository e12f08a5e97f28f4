"""One commit: new files under new names, then the swap of the manifest, then nothing to undo."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import CommitUnknown, IndexStoreError
from sbert_search.index import manifest as manifests
from sbert_search.index import npy
from sbert_search.index.manifest import Manifest, TombstoneRecord
from sbert_search.index.segment_writer import record_of
from sbert_search.runtime import files

FOLDERS = ("seg", "del", "ann", "lex")
GRACE_S = 600.0  # age at which a file that no manifest names may be removed

_NUMBERED = re.compile(r"(\d{6,12})\.")


class Transaction:
    """Writes the files of a commit and then commits them; made by `transaction`.

    Attributes:
        committed: The state that was committed, once it is.
    """

    def __init__(self, path: Path, old: Manifest) -> None:
        self.path, self.old = path, old
        taken = [number_of(file) for file in numbered_files(path)]
        self.first_number = self.next_number = max([old.next_file, *(n + 1 for n in taken)])
        self.committed: Manifest | None = None
        self._swapped = False

    def number(self) -> int:
        """Return a file number that nobody has."""
        self.next_number += 1
        return self.next_number - 1

    def write_tombstones(self, rows: NDArray[np.int64], n_docs: int) -> TombstoneRecord:
        """Write which rows die, int64 (n,), and how many documents they are."""
        file = npy.write(self.path / f"del/{self.number():06d}.npy", np.sort(rows))
        return TombstoneRecord(n_rows=len(rows), n_docs=n_docs, file=record_of(file, self.path))

    def commit(self, new: Manifest) -> None:
        """Make the new state durable and current.

        Raises:
            OSError: The old state holds.
            CommitUnknown: The old or the new state holds.
        """
        if self.next_number > self.first_number:
            for name in FOLDERS:
                files.disk.fsync_folder(self.path / name)
        new = dataclasses.replace(
            new, generation=self.old.generation + 1, next_file=self.next_number
        )
        self._swapped = True  # from here on, whatever interrupts us, the new state may hold
        try:
            manifests.write(self.path, new)
        except OSError:
            self._swapped = False
            raise
        self.committed = new

    def undo(self) -> None:
        """Remove what was written, as far as the disk lets us, unless a manifest may name it."""
        if self._swapped:
            return
        for file in numbered_files(self.path):
            if number_of(file) >= self.first_number:
                with contextlib.suppress(OSError):
                    files.disk.unlink(file)


@contextlib.contextmanager
def transaction(path: Path, old: Manifest) -> Iterator[Transaction]:
    """Write files and commit them, or leave the index as it was.

    Raises:
        IndexStoreError: The disk failed; the index is as before.
        CommitUnknown: The disk failed at the last step; reopen the index.
    """
    work = Transaction(path, old)
    try:
        yield work
    except CommitUnknown:
        raise
    except OSError as error:
        work.undo()
        raise IndexStoreError(
            f"{path}: writing failed, {error}. The index is as it was before this commit; "
            "see to the disk and run the command again."
        ) from error
    except BaseException:
        work.undo()
        raise


def remove_unreferenced(path: Path, manifest: Manifest, *, grace_s: float = GRACE_S) -> list[str]:
    """Remove files that the manifest does not name, once they are old enough.

    Returns:
        Their names.
    """
    needed = {file.name for file in manifest.files}
    strays = [path / (manifests.NAME + ".tmp"), *numbered_files(path)]
    return remove(path, [s for s in strays if _name(path, s) not in needed], grace_s=grace_s)


def remove(path: Path, strays: Iterable[Path], *, grace_s: float = 0.0) -> list[str]:
    """Remove files that nobody refers to; what cannot be removed waits for the next writer."""
    removed = []
    for file in strays:
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime >= grace_s:
                files.disk.unlink(file)
                removed.append(_name(path, file))
    return removed


def numbered_files(path: Path) -> list[Path]:
    """List the files whose names are those of an index's files, whoever refers to them."""
    folders = (path / name for name in FOLDERS if (path / name).is_dir())
    found = (file for folder in folders for file in folder.iterdir())
    return sorted(file for file in found if manifests.FILE_NAME.fullmatch(_name(path, file)))


def number_of(file: Path) -> int:
    """Return the number in a file's name."""
    found = _NUMBERED.match(file.name)
    assert found is not None
    return int(found.group(1))


def _name(path: Path, file: Path) -> str:
    return file.relative_to(path).as_posix()
