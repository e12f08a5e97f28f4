"""Creating, opening and locking an index on disk."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from sbert_search.base import files, locks
from sbert_search.base.folders import Folder
from sbert_search.base.options import if_offered
from sbert_search.errors import (
    CorruptIndex,
    IndexLocked,
    IndexStoreError,
    ModelMismatch,
    NotAnIndex,
    UnfinishedBuild,
)
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import (
    FOLDERS,
    LOCK,
    OPEN_TRIES,
    SHARDS,
    Manifest,
)

# A search must not wait for the import of code that writes an index. Only the methods that write
# import such code.
if TYPE_CHECKING:
    from sbert_search.index.storage.transaction import HeldFolder
    from sbert_search.index.writer import IndexWriter

H = TypeVar("H", bound="HeldFolder")
S = TypeVar("S", bound=Snapshot)

LOOK_AGAIN_S = 0.2  # seconds to wait for a lock before checking whether the folder was replaced


class StoreMaker(Protocol):
    """Makes and opens indexes of one kind, sharded or not; the class `IndexStore` is one."""

    def open(self, path: str | Path, /) -> IndexStore:
        """Open an index for reading."""

    def create(self, path: str | Path, empty: Manifest, /) -> IndexStore:
        """Make an index without documents in a folder that is absent or empty."""

    def require_free(self, path: Path, /) -> None:
        """Raise an error if `create` would refuse the folder; write nothing."""


class IndexStore:
    """An index on disk: a snapshot to read, and a writer while no other process writes."""

    def __init__(self, snapshot: Snapshot, *, wait_s: float = 0.0) -> None:
        self.snapshot, self.wait_s = snapshot, wait_s  # seconds that `writer` waits for the lock
        self._moving = threading.Lock()

    @property
    def path(self) -> Path:
        """Absolute path of the folder of the index."""
        return self.snapshot.path

    @property
    def commit_file(self) -> Path:
        """The manifest of the index: the file that each commit replaces."""
        return self.path / manifests.NAME

    @classmethod
    def create(cls, path: str | Path, empty: Manifest) -> IndexStore:
        """Make an index without documents in a folder that is absent or empty."""
        from sbert_search.index.dense import faiss_runtime
        from sbert_search.index.storage.transaction import HeldFolder

        path = Path(path).absolute()
        if not empty.settings.spec.is_flat:
            faiss_runtime.require_faiss()
        try:
            with contextlib.suppress(FileExistsError):
                files.disk.make_folder(path)
                files.disk.fsync_folder(path.parent)
            _check_free(Folder.open(path))
            with contextlib.ExitStack() as stack:
                folder, lock = take_lock(stack, path, 0.0)
                _check_free(folder)  # again: another process may have made an index meanwhile
                locks.check_renames(folder)
                _add_folders(folder)
                manifests.write(folder, empty, ready=HeldFolder(folder, lock).require)
        except OSError as error:
            raise IndexStoreError(f"No index can be made at {path}: {error}.") from error
        return cls.open(path)

    @classmethod
    def require_free(cls, path: Path) -> None:
        """Raise an error if `create` would refuse the folder; write nothing."""
        if folder := opened_if_present(path):
            _check_free(folder)

    @classmethod
    def open(cls, path: str | Path, *, wait_s: float = 0.0) -> IndexStore:
        """Open an index for reading, without a lock."""
        return cls(open_snapshot(Path(path)), wait_s=wait_s)

    def __reduce__(self) -> tuple[Callable[..., IndexStore], tuple[str]]:
        """Pickle path and ``wait_s``, not the mapped files; unpickling opens the newest state."""
        return partial(IndexStore.open, wait_s=self.wait_s), (str(self.path),)

    def newest(self) -> Snapshot:
        """Open and return the newest state, which may be `snapshot`; `snapshot` does not change."""
        return open_snapshot(self.path, self.snapshot)

    def refresh(self) -> bool:
        """Set `snapshot` to the newest state; return whether it differs from the state before."""
        first = self.snapshot
        # Again if another thread, which may have a newer state, has replaced `snapshot` meanwhile.
        for _ in range(OPEN_TRIES):
            before, newest = self.snapshot, self.newest()
            self._require_successor(newest)
            with self._moving:
                if self.snapshot is before:
                    self.snapshot = newest
                    return newest is not first
        return True  # at each try, another thread had set `snapshot` to a newer state

    def _require_successor(self, newest: Snapshot) -> None:
        """Refuse a state with another model or kind of vectors, or an unfinished build."""
        for name in ("identity", "metric", "dim", "dtype"):
            if getattr(newest.settings, name) != getattr(self.snapshot.settings, name):
                is_model = name == "identity"
                kind, what = (ModelMismatch, "model") if is_model else (IndexStoreError, name)
                raise kind(
                    f"{self.path} now holds another index: its {what} differs from the {what} of "
                    "the index that was opened. Open the index again."
                )
        if _is_finished(self.snapshot) and not _is_finished(newest):
            raise UnfinishedBuild(
                f"{self.path} now holds an unfinished build. Searches continue with the index that "
                "was opened. Try again when the build is finished; to resume it, run its "
                "`index build` command again."
            )

    @contextlib.contextmanager
    def writer(self, *, at_least_s: float = 0.0) -> Iterator[IndexWriter]:
        """Lock the index and yield its writer; each commit updates `snapshot` of this store."""
        from sbert_search.index.storage.transaction import (
            HeldFolder,
            remove_unreferenced,
            require_files,
        )
        from sbert_search.index.writer import IndexWriter

        _require_no_shard(self.path)
        with holding_lock(self.path, max(self.wait_s, at_least_s), HeldFolder) as held_folder:
            newest = _newest(held_folder.folder, self.snapshot)
            self._start_from(newest)
            require_files(held_folder.folder, newest.manifest)
            remove_unreferenced(held_folder, newest.manifest)
            yield IndexWriter(newest, held_folder, self._move)

    def _start_from(self, newest: Snapshot) -> None:
        """Set `snapshot` to the state that a new writer opened, if it is of the same index."""
        self._require_successor(newest)
        self._move(newest)

    def _move(self, snapshot: Snapshot) -> None:
        with self._moving:
            self.snapshot = snapshot

    def backup_to(self, target: str | Path) -> None:
        """Copy the newest state to another folder, without a lock."""
        from sbert_search.index.upkeep import backup

        # Again if a compaction removes files of the state before all are open. Those that are open
        # stay readable.
        for _ in range(OPEN_TRIES):
            self.refresh()
            try:
                opened = backup.map_files(self.snapshot.folder, self.snapshot.manifest)
            except FileNotFoundError as error:
                if not self.refresh():
                    raise backup.missing_file(self.snapshot.folder, error) from error
                continue
            backup.backup_to(self.snapshot.folder, self.snapshot.manifest, Path(target), opened)
            return
        raise always_changing(self.path)


def open_store(path: str | Path, *, wait_s: float = 0.0) -> IndexStore:
    """Open an index, with or without shards."""
    try:
        return IndexStore.open(path, wait_s=wait_s)
    except NotAnIndex:
        # Most indexes have no shards.
        from sbert_search.index.shards.snapshot import is_sharded
        from sbert_search.index.shards.store import ShardedStore

        if not is_sharded(path):
            raise
        return ShardedStore.open(path, wait_s=wait_s)


def open_snapshot(path: Path, reuse: Snapshot | None = None) -> Snapshot:
    """Open the newest state of an index, with the open files of ``reuse``, an earlier state."""
    return open_following_folder(path, lambda folder: _newest(folder, reuse))


def open_following_folder(path: Path, opened: Callable[[Folder], S]) -> S:
    """Open a state with ``opened``; if it fails because the folder was replaced, start again."""
    for _ in range(OPEN_TRIES):
        folder = manifests.open_folder(path)
        try:
            return opened(folder)
        except (CorruptIndex, NotAnIndex):
            if folder.is_at_its_path():
                raise
    raise always_changing(path)


def _newest(folder: Folder, reuse: Snapshot | None) -> Snapshot:
    """Open the newest state in an open folder; start again if a compaction removes its files."""
    if reuse and (reuse.folder.identity != folder.identity or reuse.folder.moved_folders()):
        reuse = None
    for _ in range(OPEN_TRIES):
        manifest = manifests.read(folder)
        if reuse and reuse.manifest == manifest:
            return reuse
        try:
            return Snapshot(folder, manifest, reuse)
        except FileNotFoundError as error:
            if manifests.read(folder) == manifest:
                raise missing_file(folder, error) from error
    raise always_changing(folder.path)


def missing_file(folder: Folder, error: FileNotFoundError) -> CorruptIndex:
    """Return the error for a missing file that the manifest of a folder names."""
    name = Path(str(error.filename)).relative_to(folder.path)
    return CorruptIndex(str(name), "the file", "no such file")


def _is_finished(state: Snapshot) -> bool:
    build = state.manifest.build
    return build is None or build.finished


def always_changing(path: Path) -> IndexStoreError:
    """Return the error after `OPEN_TRIES` attempts to open an index that writers changed."""
    return IndexStoreError(f"{path} changed {OPEN_TRIES} times while it was opened; try again.")


@contextlib.contextmanager
def holding_lock(path: Path, wait_s: float, kind: type[H]) -> Iterator[H]:
    """Hold the lock of an index, and keep its sub-folders open."""
    with contextlib.ExitStack() as stack:
        try:
            folder, lock = take_lock(stack, path, wait_s)
            _add_folders(folder)  # a program that copies only files leaves out an empty folder
            # If another program replaces a sub-folder, it is noticed, as the inode stays in use.
            stack.enter_context(folder.kept_open(FOLDERS))
        except OSError as error:
            raise IndexStoreError(f"{path} cannot be written: {error}.") from error
        yield kind(folder, lock)


def take_lock(stack: contextlib.ExitStack, path: Path, wait_s: float) -> tuple[Folder, locks.Lock]:
    """Lock the index at a path until ``stack`` is closed.

    If the folder is replaced before it is locked, the new folder is locked.
    """
    until = time.monotonic() + wait_s
    while True:
        folder, left_s = manifests.open_folder(path), max(until - time.monotonic(), 0.0)
        attempt = locks.exclusive_lock(folder / LOCK, wait_s=min(left_s, LOOK_AGAIN_S))
        try:
            with contextlib.ExitStack() as taken:
                lock = taken.enter_context(attempt)
                if folder.is_at_its_path():
                    stack.enter_context(taken.pop_all())
                    return folder, lock
        except locks.LockHeld as error:
            if left_s <= LOOK_AGAIN_S:
                wait = f"wait for it{if_offered('--wait', ' (--wait SECONDS)')}"
                raise IndexLocked(
                    f"{path} is being written by {error.holder}; {wait}, or end it. Searching is "
                    "possible meanwhile."
                ) from error


def opened_if_present(path: Path) -> Folder | None:
    """Open the folder in which an index is to be made; None if the folder is absent."""
    try:
        return Folder.open(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IndexStoreError(f"No index can be made at {path}: {error}.") from error


def _require_no_shard(path: Path) -> None:
    """Refuse the folder of a shard, since a shard must not be changed on its own."""
    shard = path.resolve()  # the path may be a symbolic link
    whole = shard.parent
    if shard.name.startswith("shard-") and (whole / SHARDS).is_file():
        raise IndexStoreError(
            f"{path} is a shard of a sharded index. That index would not know of a change to the "
            f"shard alone. Change {whole} instead."
        )


def _add_folders(folder: Folder) -> None:
    missing = [folder / name for name in FOLDERS if not folder.has(name)]
    for entry in missing:
        files.disk.make_folder(entry)
    if missing:
        files.disk.fsync_folder(folder)


def _check_free(folder: Folder) -> None:
    """Raise an error if a folder holds anything but remains of an interrupted `create`."""
    entries = folder.listing()
    if manifests.NAME in entries:
        raise IndexStoreError(
            f"{folder} already holds an index; add to it, or name another folder."
        )
    if SHARDS in entries:
        raise IndexStoreError(
            f"{folder} holds a sharded index. Name another folder, or remove this one; an "
            "unfinished build of it is resumed with --shards."
        )
    remains = {LOCK, manifests.TEMPORARY, *locks.PROBES}
    foreign = sorted(
        name for name, is_file in entries.items() if name not in (remains if is_file else FOLDERS)
    )
    if foreign:
        raise IndexStoreError(
            f"{folder} is not empty (it holds {foreign[0]!r}); name a new folder for the index."
        )
    for below in FOLDERS:
        if below in entries and (names := sorted(folder.listing(below))):
            raise IndexStoreError(
                f"{folder} holds files of an index ({below}/{names[0]}) whose {manifests.NAME} is "
                "missing. Restore that file, or remove the folder, or name another one."
            )
