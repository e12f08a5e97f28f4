"""Full verification of a sharded index, which is a folder of ordinary indexes, its shards.

Every file of every shard is read. If all files are sound, two more checks follow: each document
must be in the shard to which its id belongs, and no two live rows may have the same number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sbert_search.base.folders import Folder
from sbert_search.errors import CorruptIndex
from sbert_search.index.maintenance.check import CheckReport, OpenedState, check
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import OPEN_TRIES
from sbert_search.index.store import always_changing
from sbert_search.shards import manifest as shard_manifests
from sbert_search.shards.manifest import ShardManifest, ShardRecord
from sbert_search.shards.routing import shards_of_hashes
from sbert_search.shards.snapshot import ShardedSnapshot
from sbert_search.shards.states import (
    below,
    is_sharded,
    naming_shard,
    open_shard,
    read_shard,
    require_alike,
)

_REMEDY = "Restore the whole sharded index from a backup, or build it again."


def check_index(path: Path) -> CheckReport:
    """Verify an index, with or without shards; see `check_shards` and `check.check`."""
    return check_shards(path) if is_sharded(path) else check(path)


def check_shards(path: Path) -> CheckReport:
    """Verify all shards of a sharded index and report every damaged file, not only the first.

    All files of all shards are opened before the first is hashed. If a writer removes a file before
    this function opens it, the newer state of the index is checked instead.

    Raises:
        NotAnIndex: The folder holds no sharded index.
        IndexStoreError: Shards have different models or settings, this process may not read a file,
            a newer version of this package wrote a manifest, or writers changed the index in each
            attempt to open its files.
    """
    for _ in range(OPEN_TRIES):
        root = manifests.open_folder(path)
        try:
            manifest = shard_manifests.read(root)
        except CorruptIndex as error:
            return CheckReport((error,), (), 1, 0)
        opened = [_opened(root, record) for record in manifest.shards]
        is_complete = all(isinstance(s, OpenedState) and s.is_complete for s in opened)
        if is_complete or (root.is_at_its_path() and shard_manifests.read(root) == manifest):
            return _report(root, manifest, opened)
    raise always_changing(path)


def _opened(root: Folder, record: ShardRecord) -> OpenedState | CorruptIndex:
    try:
        folder = open_shard(root, record)
        with naming_shard(record):
            return OpenedState(folder, read_shard(folder, record))
    except CorruptIndex as error:
        return error


def _report(
    root: Folder, manifest: ShardManifest, opened: Sequence[OpenedState | CorruptIndex]
) -> CheckReport:
    problems: list[CorruptIndex] = []
    strays: list[str] = []
    snapshots: list[Snapshot] = []
    n_files = size_bytes = 0
    for record, state in zip(manifest.shards, opened, strict=True):
        if isinstance(state, CorruptIndex):
            problems.append(state)
            continue
        report = state.report()
        problems += [below(record.folder, error) for error in report.problems]
        strays += [f"{record.folder}/{name}" for name in report.strays]
        n_files, size_bytes = n_files + report.n_files, size_bytes + report.size_bytes
        if isinstance(state.snapshot, Snapshot):
            snapshots.append(state.snapshot)
    if not problems:
        require_alike(root.path, snapshots)
        problems += _inconsistencies(ShardedSnapshot(root, manifest, snapshots))
    return CheckReport(tuple(problems), tuple(strays), n_files, size_bytes)


def _inconsistencies(snapshot: ShardedSnapshot) -> Iterator[CorruptIndex]:
    """Find documents in a shard to which their ids do not belong, and rows with equal numbers.

    Yields:
        One error for each segment with such a document, then one if live rows have equal numbers.
    """
    n_shards = len(snapshot.shards)
    for number, shard in enumerate(snapshot.shards):
        name = shard_manifests.folder_name(number)
        for segment in shard.segments:
            actual = shards_of_hashes(segment.ids[0], n_shards)
            if (wrong := actual != number).any():
                expected = f"only ids of shard {number}"
                got = f"an id of shard {actual[wrong][0]}"
                yield CorruptIndex(f"{name}/{segment.record.ids.name}", expected, got, _REMEDY)
    rows = snapshot.live_rows()
    if (twice := rows[1:] == rows[:-1]).any():
        got = f"row {rows[1:][twice][0]} in two shards"
        yield CorruptIndex(shard_manifests.NAME, "shards without common rows", got, _REMEDY)
