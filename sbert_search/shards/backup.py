"""Backups of a sharded index: a folder with a backup of each shard, and a new ``shards.json``.

A sharded index is a folder of ordinary indexes, its shards. ``shards.json`` lists them and is
called the manifest of the sharded index.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sbert_search.base import files
from sbert_search.base.folders import Folder
from sbert_search.errors import IndexStoreError
from sbert_search.index.maintenance import backup
from sbert_search.shards import manifest as shard_manifests
from sbert_search.shards.manifest import ShardManifest, ShardRecord
from sbert_search.shards.snapshot import ShardedSnapshot
from sbert_search.shards.states import naming_shard


def backup_shards(snapshot: ShardedSnapshot, target: Path) -> None:
    """Copy one state of a sharded index to a new folder, by hard links if possible.

    Each shard is copied by `backup.backup_to`. The new folder gets its final name when it is
    complete.

    Args:
        snapshot: The state.
        target: The new folder, which must not exist.

    Raises:
        FileNotFoundError: A file of the index is gone, for example after a compaction by another
            process.
        IndexStoreError: The target exists, its parent folder does not, a file may not be read, or
            the disk failed. An incomplete copy is removed, as far as the disk allows.
        CorruptIndex: A file of the index is damaged; no target is made.
    """
    target = target.absolute()
    opened = []
    for record, shard in zip(snapshot.record.shards, snapshot.shards, strict=True):
        with naming_shard(record):
            opened.append(backup.opened_files(shard.folder, shard.manifest))
    try:
        parent = Folder.open(target.parent)
        if parent.has(target.name):
            raise IndexStoreError(f"{target} exists already; name a new folder for the backup.")
        making = target.with_name(f".{target.name}.partial-{os.urandom(4).hex()}")
        files.disk.make_folder(making)
        try:
            records = []
            for number, (shard, views) in enumerate(zip(snapshot.shards, opened, strict=True)):
                place = making / shard_manifests.folder_name(number)
                record = ShardRecord.of(number, shard.manifest)
                with naming_shard(record):
                    backup.backup_to(shard.folder, shard.manifest, place, views)
                records.append(record)
            generation = snapshot.record.generation
            new = ShardManifest(generation=generation, shards=tuple(records))
            shard_manifests.write(Folder.open(making), new)
            files.disk.replace(making, target)
        except BaseException:
            with contextlib.suppress(OSError):
                files.remove_tree(making)
            raise
        files.disk.fsync_folder(parent)
    except OSError as error:
        raise IndexStoreError(f"The backup to {target} failed: {error}.") from error
