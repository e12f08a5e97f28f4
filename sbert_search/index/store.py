"""Creating and opening an index on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from sbert_search.errors import CorruptIndex, IndexLocked, IndexStoreError
from sbert_search.index import ann
from sbert_search.index import manifest as manifests
from sbert_search.index.manifest import BuildCursor, ColumnType, Manifest, StoreSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.transaction import FOLDERS, remove_unreferenced
from sbert_search.index.writer import IndexWriter
from sbert_search.runtime import files

OPEN_TRIES = 5  # how often a compaction may pull files away while they are being opened
LOCK = "LOCK"


class IndexStore:
    """An index on disk: a snapshot to read, and a writer when nobody else writes.

    Args:
        path: The folder.
        snapshot: The state to read.
        wait_s: How long a writer waits for another one to end.
    """

    def __init__(self, path: Path, snapshot: Snapshot, *, wait_s: float = 0.0) -> None:
        self.path, self.snapshot, self.wait_s = path, snapshot, wait_s

    @classmethod
    def create(
        cls,
        path: str | Path,
        settings: StoreSettings,
        columns: Mapping[str, ColumnType] | None = None,
        *,
        build: BuildCursor | None = None,
    ) -> IndexStore:
        """Make an empty index in a folder that is absent or empty.

        Args:
            path: The folder.
            settings: What is fixed for good.
            columns: Metadata columns.
            build: Where the build begins that this is for.

        Raises:
            IndexStoreError: There is something already, or the file system lacks what commits
                rely on.
        """
        path = Path(path)
        if not settings.spec.is_flat:
            ann.require_faiss()
        try:
            _make_folders(path)
            with _locked(path):
                empty = Manifest(settings=settings, columns=dict(columns or {}), build=build)
                manifests.write(path, empty)
        except OSError as error:
            raise IndexStoreError(f"No index can be made at {path}: {error}.") from error
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path, *, wait_s: float = 0.0) -> IndexStore:
        """Open an index for reading; takes no lock. ``wait_s`` is for its writers.

        Raises:
            NotAnIndex: The folder holds none.
            CorruptIndex: A file differs from what was committed.
        """
        return cls(Path(path), open_snapshot(Path(path)), wait_s=wait_s)

    def __reduce__(self) -> tuple[Callable[..., IndexStore], tuple[str]]:
        """Pickle the path: another process opens the newest state, as mapped files are not sent."""
        return partial(IndexStore.open, wait_s=self.wait_s), (os.path.abspath(self.path),)

    def refresh(self) -> bool:
        """Move to the newest committed state; True when there was a newer one."""
        before = self.snapshot
        self.snapshot = open_snapshot(self.path, before)
        return self.snapshot is not before

    @contextlib.contextmanager
    def writer(self) -> Iterator[IndexWriter]:
        """Hold the lock and write; this store sees each commit at once.

        Raises:
            IndexLocked: Another process writes.
            IndexStoreError: The folder cannot be written.
        """
        with _locked(self.path, self.wait_s):
            self.refresh()
            _add_folders(self.path)  # an index of an earlier version has fewer
            remove_unreferenced(self.path, self.snapshot.manifest)
            yield IndexWriter(self)


def open_snapshot(path: Path, reuse: Snapshot | None = None) -> Snapshot:
    """Open the newest state; what a compaction pulled away meanwhile makes it look again."""
    for _ in range(OPEN_TRIES):
        manifest = manifests.read(path)
        if reuse and reuse.manifest == manifest:
            return reuse
        try:
            return Snapshot(path, manifest, reuse)
        except FileNotFoundError as error:
            missing = str(Path(str(error.filename)).relative_to(path))
            if manifests.read(path) == manifest:
                raise CorruptIndex(missing, "the file", "no such file") from error
    raise IndexStoreError(f"{path} changed {OPEN_TRIES} times while it was opened; try again.")


def _make_folders(path: Path) -> None:
    if path.exists():
        _check_free(path)
    else:
        files.disk.make_folder(path)
        files.disk.fsync_folder(path.parent)
    files.check_can_hold_indexes(path)
    _add_folders(path)


def _add_folders(path: Path) -> None:
    missing = [path / name for name in FOLDERS if not (path / name).is_dir()]
    for folder in missing:
        files.disk.make_folder(folder)
    if missing:
        files.disk.fsync_folder(path)


def _check_free(path: Path) -> None:
    if (path / manifests.NAME).exists():
        raise IndexStoreError(f"{path} already holds an index; add to it, or name another folder.")
    ours = {LOCK, manifests.NAME + ".tmp", *FOLDERS}  # left by a process killed while creating
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
    if foreign:
        raise IndexStoreError(
            f"{path} is not empty (it holds {foreign[0]!r}); name a new folder for the index."
        )


@contextlib.contextmanager
def _locked(path: Path, wait_s: float = 0.0) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(files.exclusive_lock(path / LOCK, wait_s=wait_s))
        except files.LockHeld as error:
            raise IndexLocked(
                f"{path} is being written by process {error.pid} since {error.since}; "
                "wait for it (--wait SECONDS), or end it. Searching is possible meanwhile."
            ) from error
        except OSError as error:
            raise IndexStoreError(f"{path} cannot be written: {error}.") from error
        yield
