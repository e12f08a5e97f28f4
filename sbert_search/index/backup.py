"""A second index made of the same files: hard links on one disk, copies across disks."""

from __future__ import annotations

import errno
from pathlib import Path

from sbert_search.errors import CorruptIndex, IndexStoreError
from sbert_search.index import manifest as manifests
from sbert_search.index.manifest import FileRecord, Manifest
from sbert_search.index.segments import open_checked
from sbert_search.index.transaction import FOLDERS
from sbert_search.runtime import files


def snapshot_to(source: Path, manifest: Manifest, target: Path) -> None:
    """Make a folder that is an index of its own in the state of a manifest.

    Every file is hashed first; the folder gets its name when it is whole. Hard links share their
    bytes with the source: a snapshot guards against later writes, not against a failing disk.

    Args:
        source: The index.
        manifest: A committed state whose files are still there.
        target: A folder that does not exist.

    Raises:
        IndexStoreError: The target exists, or the disk failed.
        CorruptIndex: A file of the source is damaged; no target is made.
    """
    if target.exists():
        raise IndexStoreError(f"{target} exists already; name a new folder for the snapshot.")
    partial = target.with_name(f".{target.name}.partial")
    try:
        files.remove_tree(partial)
        files.disk.make_folder(partial)
        for name in FOLDERS:
            files.disk.make_folder(partial / name)
        for record in manifest.files:
            _add(source, record, partial)
        for name in FOLDERS:
            files.disk.fsync_folder(partial / name)
        files.write_new(partial / manifests.NAME, manifests.encode(manifest))
        files.disk.fsync_folder(partial)
        files.disk.replace(partial, target)
        files.disk.fsync_folder(target.parent)
    except OSError as error:
        raise IndexStoreError(f"No snapshot can be made at {target}: {error}.") from error


def _add(source: Path, record: FileRecord, target: Path) -> None:
    view = open_checked(source, record, hash_up_to=record.size_bytes)
    try:
        files.disk.link(source / record.name, target / record.name)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        copy = files.write_new(target / record.name, view)
        if copy.digest != record.xxh3_128:
            raise CorruptIndex(record.name, record.xxh3_128, copy.digest) from error
