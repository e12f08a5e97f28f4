"""Backups: a second index with the same files, as hard links or, on another disk, as copies."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from sbert_search.base import files
from sbert_search.base.folders import Entry, Folder
from sbert_search.errors import CorruptIndex, IndexStoreError
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import FOLDERS, FileRecord, Manifest
from sbert_search.index.storage.segments import REMAKE, open_checked

DERIVED_FOLDERS = ("ann/", "lex/")

Opened = Mapping[FileRecord, memoryview]
"""The mapped bytes of each file of a state."""

# Errors of link() after which a file is copied. ENOENT: a compaction has removed the file, but its
# mapped bytes can still be read.
COPY_INSTEAD = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOENT)


def map_files(source: Folder, manifest: Manifest) -> Opened:
    """Map all files of a state, so that they can be read even if a compaction removes them.

    FileNotFoundError if one is gone already; the caller then opens the newer state.
    """
    with source.kept_open() as opened:
        return {
            record: open_checked(opened, record, hash_up_to=0, remedy=_remedy(record.name))
            for record in manifest.files
        }


def missing_file(folder: Folder, error: FileNotFoundError) -> CorruptIndex:
    """Return the error for a missing file that the newest state of an index or a shard needs."""
    path = Path(str(error.filename)).relative_to(folder.path)
    name = "/".join(path.parts[-2:])
    return CorruptIndex(str(path), "the file", "no such file", _remedy(name))


def _remedy(name: str) -> str:
    return REMAKE if name.startswith(DERIVED_FOLDERS) else ""


def backup_to(source: Folder, manifest: Manifest, target: Path, opened: Opened) -> None:
    """Link or copy a committed state to a new folder, which becomes an index of its own.

    The hash of each file is checked, and the folder gets its final name when it is complete. Hard
    links share their bytes with the source, so a backup on the same disk protects against later
    writes to the index, but not against a failing disk.
    """
    try:
        parent = Folder.open(target.parent)
        if parent.has(target.name):
            raise IndexStoreError(f"{target} exists already; name a new folder for the backup.")
        making = parent / f".{target.name}.partial-{os.urandom(4).hex()}"
        files.disk.make_folder(making)
        try:
            _fill(making, source, manifest, opened)
            files.disk.replace(making, parent / target.name)
        except BaseException:
            with contextlib.suppress(OSError):
                _discard(making)
            raise
        files.disk.fsync_folder(parent)
    except OSError as error:
        raise IndexStoreError(f"The backup to {target} failed: {error}.") from error


def _fill(making: Entry, source: Folder, manifest: Manifest, opened: Opened) -> None:
    folder = making.opened()
    for name in FOLDERS:
        files.disk.make_folder(folder / name)
    for record, view in opened.items():
        _add(source, record, view, folder)
    for name in FOLDERS:
        files.disk.fsync_folder(folder / name)
    files.write_new(folder / manifests.NAME, manifests.encode(manifest))
    files.disk.fsync_folder(folder)


def _add(source: Folder, record: FileRecord, view: memoryview, target: Folder) -> None:
    try:
        files.disk.link(source / record.name, target / record.name)
    except OSError as error:
        if error.errno not in COPY_INSTEAD:
            raise
        copy = files.write_new(target / record.name, view)
        if copy.digest != record.xxh3_128:
            remedy = _remedy(record.name)
            raise CorruptIndex(record.name, record.xxh3_128, copy.digest, remedy) from error
    else:
        size, remedy = record.size_bytes, _remedy(record.name)
        open_checked(target, record, hash_up_to=size, remedy=remedy)


def _discard(making: Entry) -> None:
    """Remove the partial folder of a failed backup."""
    folder = making.opened()
    for below in FOLDERS:
        if folder.has(below):
            for name in folder.listing(below):  # a symbolic link is removed, and not followed
                files.disk.unlink(folder / f"{below}/{name}")
            files.disk.remove_folder(folder / below)
    for name in folder.listing():
        files.disk.unlink(folder / name)
    files.disk.remove_folder(making)
