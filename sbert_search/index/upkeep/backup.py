"""Backups: a second index with the same files, as hard links or, on another disk, as copies."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from sbert_search.base import files
from sbert_search.base.folders import Entry, Folder
from sbert_search.errors import IndexStoreError
from sbert_search.index.shards import manifest as shard_manifests
from sbert_search.index.shards.manifest import ShardManifest
from sbert_search.index.shards.opening import naming_shard
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import FOLDERS, FileRecord, Manifest
from sbert_search.index.storage.segments import open_checked

Opened = Mapping[FileRecord, memoryview]
"""The mapped bytes of each file of a state; those in a pack are parts of one view."""

# Errors of link() after which a file is copied. ENOENT: a compaction has removed the file, but its
# mapped bytes can still be read.
COPY_INSTEAD = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOENT)


def backup_to(snapshot: Snapshot, target: Path) -> None:
    """Link or copy a committed state to a new folder, which becomes an index of its own.

    The hash of each file is checked, and the folder gets its final name when it is complete. Hard
    links share their bytes with the source, so a backup on the same disk protects against later
    writes to the index, but not against a failing disk. `FileNotFoundError`: a file of the state is
    gone, for example after a compaction by another process; the caller then opens the newer state.
    """
    opened = []
    for name, part in zip(snapshot.part_folders, snapshot.parts, strict=True):
        with naming_shard(name):
            opened.append(_map_files(part.folder, part.manifest))
    try:
        parent = Folder.open(target.parent)
        if parent.has(target.name):
            raise IndexStoreError(f"{target} exists already; name a new folder for the backup.")
        making = parent / f".{target.name}.partial-{os.urandom(4).hex()}"
        files.disk.make_folder(making)
        try:
            folder = making.opened()
            for name, part, views in zip(
                snapshot.part_folders, snapshot.parts, opened, strict=True
            ):
                with naming_shard(name):
                    _fill(_made(folder / name) if name else folder, part, views)
            if snapshot.shards:
                states = [part.manifest for part in snapshot.parts]
                new = ShardManifest.of(snapshot.shards.generation, states)
                shard_manifests.write(folder, new)
            files.disk.replace(making, parent / target.name)
        except BaseException:
            with contextlib.suppress(OSError):
                _discard(making)
            raise
        files.disk.fsync_folder(parent)
    except OSError as error:
        raise IndexStoreError(f"The backup to {target} failed: {error}.") from error


def _map_files(source: Folder, manifest: Manifest) -> Opened:
    """Map all files of a state, so that they can be read even if a compaction removes them."""
    with source.kept_open() as opened:
        return {record: open_checked(opened, record, hash_up_to=0) for record in manifest.files}


def _made(place: Entry) -> Folder:
    files.disk.make_folder(place)
    return place.opened()


def _fill(folder: Folder, part: Snapshot, opened: Opened) -> None:
    for name in FOLDERS:
        files.disk.make_folder(folder / name)
    for name, view in {record.on_disk: view for record, view in opened.items()}.items():
        _add(part.folder, name, view, folder)
    for record in opened:
        open_checked(folder, record, hash_up_to=record.size_bytes)
    for name in FOLDERS:
        files.disk.fsync_folder(folder / name)
    files.write_new(folder / manifests.NAME, manifests.encode(part.manifest))
    files.disk.fsync_folder(folder)


def _add(source: Folder, name: str, view: memoryview, target: Folder) -> None:
    try:
        files.disk.link(source / name, target / name)
    except OSError as error:
        if error.errno not in COPY_INSTEAD:
            raise
        files.write_new(target / name, memoryview(view.obj))  # a whole pack, not only a part


def _discard(place: Entry) -> None:
    """Remove the partial folder of a failed backup; a link is removed, and not followed."""
    folder = place.opened()
    for name in folder.listing():
        if stat.S_ISDIR(folder.stat(name).st_mode):
            _discard(folder / name)
        else:
            files.disk.unlink(folder / name)
    files.disk.remove_folder(place)
