"""Creating, opening and locking a sharded index: a folder of ordinary indexes, its shards.

The file ``shards.json`` lists the shards. It is the manifest of the sharded index.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sbert_search.base import files, locks
from sbert_search.base.folders import Folder
from sbert_search.errors import IndexStoreError, NotAnIndex
from sbert_search.index import store as stores
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import (
    LOCK,
    OPEN_TRIES,
    BuildCursor,
    ColumnType,
    StoreSettings,
)
from sbert_search.index.store import IndexStore
from sbert_search.shards import manifest as shard_manifests
from sbert_search.shards.manifest import ShardManifest, ShardRecord
from sbert_search.shards.snapshot import ShardedSnapshot
from sbert_search.shards.states import StaleShard, naming_shard, open_snapshots

# A search must not wait for the import of code that writes indexes, so the methods that write
# import it.
if TYPE_CHECKING:
    from sbert_search.shards.writer import ShardedWriter


class ShardedStore(IndexStore):
    """A sharded index on disk: a snapshot to read, and a writer if no other process writes.

    Args:
        snapshot: The state to read.
        wait_s: Seconds that a writer waits for another process's lock.
    """

    snapshot: ShardedSnapshot

    def __init__(self, snapshot: ShardedSnapshot, *, wait_s: float = 0.0) -> None:
        super().__init__(snapshot, wait_s=wait_s)

    @property
    def commit_file(self) -> Path:
        """The file that each commit replaces."""
        return self.path / manifests.SHARDS

    @classmethod
    def open(cls, path: str | Path, *, wait_s: float = 0.0) -> ShardedStore:
        """Open a sharded index for reading, without a lock; errors as for `ShardedIndex.open`."""
        return cls(open_state(Path(path)), wait_s=wait_s)

    def __reduce__(self) -> tuple[Callable[..., ShardedStore], tuple[str]]:
        """Pickle the path, since mapped files cannot be sent; unpickling opens the newest state."""
        return partial(ShardedStore.open, wait_s=self.wait_s), (str(self.path),)

    def newest(self) -> ShardedSnapshot:
        """Open the newest state of the index; see `IndexStore.newest`."""
        return open_state(self.path, self.snapshot)

    @contextlib.contextmanager
    def writer(self, *, at_least_s: float = 0.0) -> Iterator[ShardedWriter]:
        """Lock the index and yield its writer; each commit updates `snapshot` of this store.

        Args:
            at_least_s: Seconds to wait for another process's lock, even if ``wait_s`` is less.

        Raises:
            IndexLocked: Another process is writing.
            IndexStoreError: The folder cannot be written, or holds another index; see `refresh`.
            UnfinishedBuild: As for `refresh`.
            CorruptIndex: A file of the index is missing or damaged.
        """
        from sbert_search.index.storage.transaction import remove_unreferenced, require_files
        from sbert_search.shards.held import held
        from sbert_search.shards.writer import ShardedWriter

        with held(self.path, max(self.wait_s, at_least_s)) as (shards, manifest):
            try:
                newest = _opened(shards.root, manifest, self.snapshot)
            except FileNotFoundError as error:  # under the lock, no other process removes files
                raise stores.missing_file(shards.root, error) from error
            self._start_from(newest)
            states = zip(shards.shards, manifest.shards, newest.shards, strict=True)
            for shard, record, state in states:
                with naming_shard(record):
                    require_files(shard.folder, state.manifest)
                remove_unreferenced(shard, state.manifest)
            yield ShardedWriter(newest, shards, self._move)

    def backup_to(self, target: str | Path) -> None:
        """Copy the newest state to a new folder; see `shards.backup.backup_shards`."""
        from sbert_search.index.maintenance import backup
        from sbert_search.shards.backup import backup_shards

        for _ in range(OPEN_TRIES):
            self.refresh()
            try:
                backup_shards(self.snapshot, Path(target))
            except FileNotFoundError as error:
                if not self.refresh():
                    raise backup.missing_file(self.snapshot.folder, error) from error
            else:
                return
        raise stores.always_changing(self.path)


@dataclass(frozen=True)
class ShardedStores:
    """Makes and opens sharded indexes with ``n_shards`` shards, as a `StoreMaker` does."""

    n_shards: int

    def open(self, path: str | Path) -> IndexStore:
        """Open the sharded index in a folder; errors as for `ShardedIndex.open`.

        Raises:
            IndexStoreError: The index has another number of shards.
        """
        store = ShardedStore.open(path)
        if (n_shards := len(store.snapshot.shards)) != self.n_shards:
            raise IndexStoreError(
                f"{path} has {n_shards} shards, not {self.n_shards}. Build with --shards "
                f"{n_shards}, name another folder, or remove this one."
            )
        return store

    def require_free(self, path: Path) -> None:
        """Refuse a folder in which `create` would refuse to make an index, and write nothing.

        Raises:
            ConfigError: A new index cannot have this number of shards.
            IndexStoreError: The folder holds an index or other files, or cannot be read.
        """
        shard_manifests.require_new_number(self.n_shards)
        if folder := stores.opened_if_present(path):
            check_free(folder, shard_manifests.folder_names(self.n_shards))

    def create(
        self,
        path: str | Path,
        settings: StoreSettings,
        columns: Mapping[str, ColumnType] | None = None,
        *,
        build: BuildCursor | None = None,
    ) -> IndexStore:
        """Make empty shards and ``shards.json``; arguments and errors as for `IndexStore.create`.

        If the call is interrupted, a second call with the same arguments finishes it.

        Raises:
            ConfigError: A new index cannot have this number of shards.
        """
        shard_manifests.require_new_number(self.n_shards)
        path = Path(path).absolute()
        names = shard_manifests.folder_names(self.n_shards)
        try:
            with contextlib.suppress(FileExistsError):
                files.disk.make_folder(path)
                files.disk.fsync_folder(path.parent)
            check_free(Folder.open(path), names)
            with contextlib.ExitStack() as stack:
                root, _ = stores.take_lock(stack, path, 0.0)
                check_free(root, names)
                records = []
                for number, name in enumerate(names):
                    manifest = _empty_shard(path / name, settings, columns, build)
                    records.append(ShardRecord.of(number, manifest))
                files.disk.fsync_folder(root)
                shard_manifests.write(root, ShardManifest(shards=tuple(records)))
        except OSError as error:
            raise IndexStoreError(f"No index can be made at {path}: {error}.") from error
        return ShardedStore.open(path)


def open_state(path: Path, reuse: ShardedSnapshot | None = None) -> ShardedSnapshot:
    """Open the newest state of a sharded index; start over if its folder is replaced meanwhile.

    Args:
        path: The folder.
        reuse: An earlier state. Its open files are used again if the folder is still the same.
            None: all files are opened.
    """
    return stores.following(path, lambda root: _newest(root, reuse))


def _newest(root: Folder, reuse: ShardedSnapshot | None) -> ShardedSnapshot:
    """Open the newest state of an open folder; start over if a writer changes its files."""
    if reuse and reuse.folder.identity != root.identity:
        reuse = None
    for _ in range(OPEN_TRIES):
        manifest = shard_manifests.read(root)
        try:
            return _opened(root, manifest, reuse)
        except (FileNotFoundError, StaleShard) as error:
            if shard_manifests.read(root) == manifest:
                if isinstance(error, StaleShard):
                    raise
                raise stores.missing_file(root, error) from error
    raise stores.always_changing(root.path)


def _opened(
    root: Folder, manifest: ShardManifest, reuse: ShardedSnapshot | None
) -> ShardedSnapshot:
    if reuse and reuse.record == manifest:
        return reuse
    known = (reuse.record, reuse.shards) if reuse else None
    return ShardedSnapshot(root, manifest, open_snapshots(root, manifest, known))


def check_free(folder: Folder, names: list[str]) -> None:
    """Refuse a folder that is not empty; remains of an interrupted creation are allowed.

    Args:
        folder: The folder in which an index is to be made.
        names: Names of the folders of the shards, which may exist.
    """
    entries = folder.listing()
    if manifests.SHARDS in entries:
        raise IndexStoreError(
            f"{folder} already holds an index; add to it, or name another folder."
        )
    if manifests.NAME in entries:
        raise IndexStoreError(
            f"{folder} holds an index without shards. Name another folder, or remove this one; an "
            "unfinished build of it is resumed without --shards."
        )
    allowed = {LOCK, f"{manifests.SHARDS}.tmp", *locks.PROBES, *names}
    if foreign := sorted(entries.keys() - allowed):
        raise IndexStoreError(
            f"{folder} is not empty (it holds {foreign[0]!r}); name a new folder for the index."
        )


def _empty_shard(
    path: Path,
    settings: StoreSettings,
    columns: Mapping[str, ColumnType] | None,
    build: BuildCursor | None,
) -> manifests.Manifest:
    """Make an empty shard; replace an empty one that an interrupted creation has left."""
    with contextlib.suppress(NotAnIndex):
        left = IndexStore.open(path).snapshot.manifest
        if left.segments or left.generation:
            raise IndexStoreError(
                f"{path} holds an index, but its folder has no {manifests.SHARDS}. Restore that "
                "file, or remove the folder."
            )
        files.remove_tree(path)
    return IndexStore.create(path, settings, columns, build=build).snapshot.manifest
