"""Creating, opening and locking a sharded index, also out of existing indexes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sbert_search.base import files, locks
from sbert_search.base.folders import Folder
from sbert_search.errors import IndexStoreError, NotAnIndex
from sbert_search.index import store as stores
from sbert_search.index.shards import manifest as shard_manifests
from sbert_search.index.shards.manifest import ShardManifest, ShardRecord, shards_of_hashes
from sbert_search.index.shards.snapshot import (
    ShardedSnapshot,
    StaleShard,
    naming_shard,
    open_snapshots,
    read_bytes,
    require_alike,
)
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import (
    LOCK,
    OPEN_TRIES,
    ColumnType,
    Manifest,
)
from sbert_search.index.store import IndexStore, StoreMaker

if TYPE_CHECKING:
    from sbert_search.index.shards.writer import ShardedWriter


# A search must not wait for the import of code that writes indexes, so the methods that write
# import it.


class ShardedStore(IndexStore):
    """A sharded index on disk: a snapshot to read, and a writer if no other process writes."""

    snapshot: ShardedSnapshot

    def __init__(self, snapshot: ShardedSnapshot, *, wait_s: float = 0.0) -> None:
        super().__init__(snapshot, wait_s=wait_s)

    @property
    def commit_file(self) -> Path:
        """The file that each commit replaces."""
        return self.path / manifests.SHARDS

    @classmethod
    def open(cls, path: str | Path, *, wait_s: float = 0.0) -> ShardedStore:
        """Open a sharded index for reading, without a lock."""
        return cls(open_state(Path(path)), wait_s=wait_s)

    def __reduce__(self) -> tuple[Callable[..., ShardedStore], tuple[str]]:
        """Pickle path and ``wait_s``, not the mapped files; unpickling opens the newest state."""
        return partial(ShardedStore.open, wait_s=self.wait_s), (str(self.path),)

    def newest(self) -> ShardedSnapshot:
        """Open and return the newest state, which may be `snapshot`; `snapshot` does not change."""
        return open_state(self.path, self.snapshot)

    @contextlib.contextmanager
    def writer(self, *, at_least_s: float = 0.0) -> Iterator[ShardedWriter]:
        """Lock the index and yield its writer; each commit updates `snapshot` of this store."""
        from sbert_search.index.shards.held import holding_locks
        from sbert_search.index.shards.writer import ShardedWriter
        from sbert_search.index.storage.transaction import remove_unreferenced, require_files

        with holding_locks(self.path, max(self.wait_s, at_least_s)) as (shards, manifest):
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
        """Copy the newest state to a new folder, without a lock."""
        from sbert_search.index.shards.writer import backup_shards
        from sbert_search.index.upkeep import backup

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
        """Open the sharded index in a folder; refuse one with another number of shards."""
        store = ShardedStore.open(path)
        if (n_shards := len(store.snapshot.shards)) != self.n_shards:
            raise IndexStoreError(
                f"{path} has {n_shards} shards, not {self.n_shards}. Build with --shards "
                f"{n_shards}, name another folder, or remove this one."
            )
        return store

    def require_free(self, path: Path) -> None:
        """Raise an error if `create` would refuse the folder; write nothing."""
        shard_manifests.require_new_shard_count(self.n_shards)
        if folder := stores.opened_if_present(path):
            check_free(folder, shard_manifests.folder_names(self.n_shards))

    def create(self, path: str | Path, empty: Manifest) -> IndexStore:
        """Make empty shards and ``shards.json``, or finish a call that was interrupted."""
        shard_manifests.require_new_shard_count(self.n_shards)
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
                    manifest = _empty_shard(path / name, empty)
                    records.append(ShardRecord.of(number, manifest))
                files.disk.fsync_folder(root)
                shard_manifests.write(root, ShardManifest(shards=tuple(records)))
        except OSError as error:
            raise IndexStoreError(f"No index can be made at {path}: {error}.") from error
        return ShardedStore.open(path)


def stores_of(n_shards: int | None) -> StoreMaker:
    """Return what makes indexes with ``n_shards`` shards; None: without shards."""
    if n_shards is None:
        return IndexStore
    shard_manifests.require_shard_count(n_shards)
    return ShardedStores(n_shards)


def open_state(path: Path, reuse: ShardedSnapshot | None = None) -> ShardedSnapshot:
    """Open the newest state of a sharded index, with the open files of ``reuse``."""
    return stores.open_following_folder(path, lambda root: _newest(root, reuse))


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
    """Refuse a folder that holds more than the remains of an interrupted creation of ``names``."""
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


def _empty_shard(path: Path, empty: Manifest) -> Manifest:
    """Make an empty shard; replace an empty one that an interrupted creation has left."""
    with contextlib.suppress(NotAnIndex):
        left = IndexStore.open(path).snapshot.manifest
        if left.segments or left.generation:
            raise IndexStoreError(
                f"{path} holds an index, but its folder has no {manifests.SHARDS}. Restore that "
                "file, or remove the folder."
            )
        files.remove_tree(path)
    return IndexStore.create(path, empty).snapshot.manifest


def assemble(path: Path, parts: Sequence[Path]) -> ShardedStore:
    """Move finished indexes into a new folder, as the shards of one index.

    Part ``n`` may hold only documents whose ids belong to shard ``n``, and no row number (the
    number of a passage in an index) may be in two parts. The parts are renamed, so they must be on
    the file system of ``path``. If the call is interrupted before the sharded index is complete, a
    second call with the same arguments finishes it.

    Args:
        path: The new folder. It is absent or empty, or has the remains of an interrupted call.
        parts: Folders of the indexes; the first becomes shard 0, the second shard 1, and so on.

    Raises:
        ConfigError: There is no part, or there are more than `manifest.MAX_SHARDS`.
        IndexStoreError: A part is unfinished, has another model or other settings than the first
            part, has a metadata column of another type, holds a document of another shard, or has a
            row number that another part has too; or ``path`` is not free or cannot be written.
        CorruptIndex: A file of a part is damaged.
    """
    shard_manifests.require_shard_count(len(parts))
    path = path.absolute()
    names = shard_manifests.folder_names(len(parts))
    places = [path / name for name in names]
    found = [_found(place, part.absolute()) for place, part in zip(places, parts, strict=True)]
    _check_parts(path, [IndexStore.open(part).snapshot for part in found])
    try:
        with contextlib.suppress(FileExistsError):
            files.disk.make_folder(path)
            files.disk.fsync_folder(path.parent)
        with contextlib.ExitStack() as stack:
            root, _ = stores.take_lock(stack, path, 0.0)
            check_free(root, names)
            for part, place in zip(found, places, strict=True):
                if part != place:
                    files.disk.replace(part, place)
                    files.disk.fsync_folder(part.parent)
            files.disk.fsync_folder(root)
            records = [_record(place, name) for place, name in zip(places, names, strict=True)]
            shard_manifests.write(root, ShardManifest(shards=tuple(records)))
    except OSError as error:
        raise IndexStoreError(f"No index can be made at {path}: {error}.") from error
    return ShardedStore.open(path)


def rows_from(number: int) -> int:
    """Return the first row number for part ``number``, which is ``number`` x 2**48.

    Parts that start at these numbers share no row numbers. Pass the result as ``first_row`` to
    `IndexStore.create`, which makes the empty part, and then add the documents to the part.
    """
    return number << 48


def _found(place: Path, part: Path) -> Path:
    """Return where a part is: at its place, if an interrupted call has moved it, or outside."""
    if not place.is_dir():
        return part
    if part.exists() and not part.samefile(place):
        raise IndexStoreError(
            f"{place} exists already, so {part} cannot be moved there. Remove {place} if it is not "
            "needed, or name another new folder."
        )
    return place


def _check_parts(path: Path, parts: Sequence[Snapshot]) -> None:
    require_alike(path, parts)
    _check_columns(parts)
    for number, part in enumerate(parts):
        if (build := part.manifest.build) is not None and not build.finished:
            raise IndexStoreError(f"{part.path} is an unfinished build; finish it first.")
        for segment in part.segments:
            actual = shards_of_hashes(segment.ids[0], len(parts))
            if (wrong := actual != number).any():
                raise IndexStoreError(
                    f"{part.path} shall be shard {number}, but holds a document of shard "
                    f"{actual[wrong][0]}. Give shard_of(doc_id, {len(parts)}) of each document."
                )
    # The rows of deleted documents are compared too: to read a row, a sharded index looks for its
    # number in all segments, and segments also contain deleted rows.
    rows_of_parts = [segment.rows for part in parts for segment in part.segments]
    rows = np.sort(np.concatenate([np.empty(0, np.int64), *rows_of_parts]))
    if (twice := rows[1:] == rows[:-1]).any():
        raise IndexStoreError(
            f"Row {rows[1:][twice][0]} is in two of the parts of {path}. Number the rows of each "
            "part apart (`rows_from`)."
        )


def _check_columns(parts: Sequence[Snapshot]) -> None:
    columns: dict[str, ColumnType] = {}
    for number, part in enumerate(parts):
        try:
            columns = columns_of.merge(columns, part.manifest.columns)
        except IndexStoreError as error:
            raise IndexStoreError(
                f"{part.path} cannot be shard {number} of the index of the parts before it. {error}"
            ) from error
    for part in parts:
        for name, kind in part.manifest.columns.items():
            if kind in ("int64", "list[string]") and columns[name] != kind:
                if part.widens(name):
                    continue
                values, fails = ("integers", "round") if kind == "int64" else ("texts", "refuse")
                raise IndexStoreError(
                    f"{part.path}: the metadata column {name!r} holds {values} that "
                    f"{columns[name]}, its type in another part, would {fails}; rename it in the "
                    "source."
                )


def _record(place: Path, name: str) -> ShardRecord:
    folder = Folder.open(place)
    data = read_bytes(folder, manifests.NAME)
    manifest: Manifest = manifests.decode(data)
    return ShardRecord(folder=name, generation=manifest.generation, sha256=data[:64].decode())
