"""Creating, opening and locking an index on disk."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

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
    VectorSettings,
)
from sbert_search.index.storage.segments import damage

# A search must not wait for the import of code that writes an index. Only the methods that write
# import such code.
if TYPE_CHECKING:
    from sbert_search.index.shards.manifest import ShardManifest
    from sbert_search.index.storage.transaction import HeldFolder
    from sbert_search.index.writer import IndexWriter

H = TypeVar("H", bound="HeldFolder")

LOOK_AGAIN_S = 0.2  # seconds to wait for a lock before checking whether the folder was replaced


class IndexStore:
    """An index on disk: a snapshot to read, and a writer while no other process writes.

    The folder is an index itself, or that of a sharded index, whose shards are indexes below it.
    """

    def __init__(self, snapshot: Snapshot, *, wait_s: float = 0.0) -> None:
        self.snapshot, self.wait_s = snapshot, wait_s  # seconds that `writer` waits for the lock
        self._moving = threading.Lock()
        self.follows_migrations = True  # False: a state with another model is refused

    @property
    def path(self) -> Path:
        """Absolute path of the folder of the index."""
        return self.snapshot.path

    @property
    def commit_file(self) -> Path:
        """The file that each commit replaces."""
        return self.path / (SHARDS if self.snapshot.is_sharded else manifests.NAME)

    @classmethod
    def create(
        cls, path: str | Path, empty: Manifest, *, n_shards: int | None = None
    ) -> IndexStore:
        """Make an index without documents in a folder that is absent or empty.

        ``n_shards`` None: an index without shards. If the call is interrupted, another call with
        the same arguments finishes it.
        """
        from sbert_search.index.dense import faiss_runtime
        from sbert_search.index.storage.transaction import HeldFolder

        path, shards = Path(path).absolute(), _new_shards(n_shards)
        if not empty.settings.spec.is_flat:
            faiss_runtime.require_faiss()
        try:
            with locked_new_folder(path, shards) as (folder, lock):
                if shards:
                    from sbert_search.index.shards.store import create_shards

                    create_shards(folder, empty, shards)
                else:
                    locks.check_renames(folder)
                    _add_folders(folder)
                    manifests.write(folder, empty, ready=HeldFolder(folder, lock).require)
        except OSError as error:
            raise IndexStoreError(f"No index can be made at {path}: {error}.") from error
        return cls.open(path)

    @classmethod
    def require_free(cls, path: Path, *, n_shards: int | None = None) -> None:
        """Raise an error if `create` would refuse the folder; write nothing."""
        shards = _new_shards(n_shards)
        try:
            folder = Folder.open(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise IndexStoreError(f"No index can be made at {path}: {error}.") from error
        check_free(folder, shards)

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
        if newest.is_sharded != self.snapshot.is_sharded:
            how = "with" if newest.is_sharded else "without"
            raise NotAnIndex(
                f"{self.path} now holds another index, {how} shards. Open the index again."
            )
        is_migrated = self.snapshot.settings.digest in newest.manifest.earlier
        if not (is_migrated and self.follows_migrations):
            self._require_same_vectors(newest.settings)
        if _is_finished(self.snapshot) and not _is_finished(newest):
            raise UnfinishedBuild(
                f"{self.path} now holds an unfinished build. Searches continue with the index that "
                "was opened. Try again when the build is finished; to resume it, run its "
                "`index build` command again."
            )

    def _require_same_vectors(self, newest: VectorSettings) -> None:
        for name in ("identity", "metric", "dim", "dtype"):
            if getattr(newest, name) != getattr(self.snapshot.settings, name):
                is_model = name == "identity"
                kind, what = (ModelMismatch, "model") if is_model else (IndexStoreError, name)
                raise kind(
                    f"{self.path} now holds another index: its {what} differs from the {what} of "
                    "the index that was opened. Open the index again."
                )

    @contextlib.contextmanager
    def writer(self, *, at_least_s: float = 0.0) -> Iterator[IndexWriter]:
        """Lock the index and yield its writer; each commit updates `snapshot` of this store."""
        from sbert_search.index.shards.held import HeldShards, holding_locks
        from sbert_search.index.shards.opening import naming_shard
        from sbert_search.index.storage.transaction import (
            HeldFolder,
            remove_unreferenced,
            require_files,
        )
        from sbert_search.index.writer import IndexWriter

        _require_no_shard(self.path)
        if isinstance(read_state(manifests.open_folder(self.path)), Manifest) is (
            self.snapshot.is_sharded
        ):
            self.refresh()  # says that the index was replaced by one of another kind
        wait_s = max(self.wait_s, at_least_s)
        held: HeldFolder | HeldShards
        with contextlib.ExitStack() as stack:
            if self.snapshot.is_sharded:
                held = stack.enter_context(holding_locks(self.path, wait_s))
            else:
                held = stack.enter_context(holding_lock(self.path, wait_s, HeldFolder))
            newest = _newest(held.folder, self.snapshot)
            self._start_from(newest)
            for name, part, folder in zip(
                newest.part_folders, newest.parts, held.parts, strict=True
            ):
                with naming_shard(name):
                    require_files(folder.kept, part.manifest)
                remove_unreferenced(folder, part.manifest)
            yield IndexWriter(newest, held, self._move)

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
                backup.backup_to(self.snapshot, Path(target))
            except FileNotFoundError as error:
                if not self.refresh():
                    raise missing_file(self.snapshot.folder, error) from error
            else:
                return
        raise always_changing(self.path)


def open_snapshot(path: Path, reuse: Snapshot | None = None) -> Snapshot:
    """Open the newest state of an index, with the open files of ``reuse``, an earlier state."""
    for _ in range(OPEN_TRIES):
        folder = manifests.open_folder(path)
        try:
            return _newest(folder, reuse)
        except (CorruptIndex, NotAnIndex):
            if folder.is_at_its_path():
                raise
    raise always_changing(path)


def read_state(folder: Folder) -> Manifest | ShardManifest:
    """Read what the newest state of an index consists of; `NotAnIndex` if there is no index."""
    try:
        return manifests.read(folder)
    except NotAnIndex:
        if not folder.has(SHARDS):
            raise
    from sbert_search.index.shards import manifest as shard_manifests  # most indexes have none

    return shard_manifests.read(folder)


def _newest(folder: Folder, reuse: Snapshot | None) -> Snapshot:
    """Open the newest state in an open folder; start again if a writer changes its files."""
    if reuse and (reuse.folder.identity != folder.identity or reuse.folder.moved_folders()):
        reuse = None
    for _ in range(OPEN_TRIES):
        state = read_state(folder)
        if reuse and state in (reuse.manifest, reuse.shards):
            return reuse
        try:
            if isinstance(state, Manifest):
                return Snapshot(folder, state, None if reuse and reuse.is_sharded else reuse)
            from sbert_search.index.shards.opening import open_shards

            return open_shards(folder, state, reuse)
        except (FileNotFoundError, CorruptIndex) as error:
            if read_state(folder) == state:
                if isinstance(error, CorruptIndex):
                    raise
                raise missing_file(folder, error) from error
    raise always_changing(folder.path)


def missing_file(folder: Folder, error: FileNotFoundError) -> CorruptIndex:
    """Return the error for a missing file that the newest state of an index or a shard needs."""
    name = Path(str(error.filename)).relative_to(folder.path)
    return damage(str(name), "the file", "no such file")


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
            kept = stack.enter_context(folder.kept_open(FOLDERS))
        except OSError as error:
            raise IndexStoreError(f"{path} cannot be written: {error}.") from error
        yield kind(folder, lock, kept)


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


@contextlib.contextmanager
def locked_new_folder(path: Path, shards: Sequence[str]) -> Iterator[tuple[Folder, locks.Lock]]:
    """Make and lock the folder of a new index with shards of these names."""
    with contextlib.suppress(FileExistsError):
        files.disk.make_folder(path)
        files.disk.fsync_folder(path.parent)
    check_free(Folder.open(path), shards)
    with contextlib.ExitStack() as stack:
        folder, lock = take_lock(stack, path, 0.0)
        check_free(folder, shards)  # again: another process may have made an index meanwhile
        yield folder, lock


def _new_shards(n_shards: int | None) -> Sequence[str]:
    """Return the folder names of the shards of a new index; refuse a number that is too large."""
    if n_shards is None:
        return ()
    from sbert_search.index.shards import manifest as shard_manifests

    shard_manifests.require_new_shard_count(n_shards)
    return shard_manifests.folder_names(n_shards)


def check_free(folder: Folder, shards: Sequence[str]) -> None:
    """Raise an error if a folder holds anything but remains of an interrupted `create`."""
    entries = folder.listing()
    if entries.keys() & {manifests.NAME, SHARDS}:
        raise IndexStoreError(
            f"{folder} already holds an index; add to it, or name another folder."
        )
    remains = {LOCK, f"{SHARDS}.tmp" if shards else manifests.TEMPORARY, *locks.PROBES}
    folders = shards or FOLDERS
    foreign = sorted(
        name for name, is_file in entries.items() if name not in (remains if is_file else folders)
    )
    if foreign:
        raise IndexStoreError(
            f"{folder} is not empty (it holds {foreign[0]!r}); name a new folder for the index."
        )
    for below in () if shards else FOLDERS:
        if below in entries and (names := sorted(folder.listing(below))):
            raise IndexStoreError(
                f"{folder} holds files of an index ({below}/{names[0]}) whose {manifests.NAME} is "
                "missing. Restore that file, or remove the folder, or name another one."
            )
