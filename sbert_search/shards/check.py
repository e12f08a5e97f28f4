"""Full verification of a sharded index: every shard, the routing of ids, and the row numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sbert_search.errors import CorruptIndex
from sbert_search.index.maintenance.check import CheckReport, check, check_state
from sbert_search.index.storage import manifest as manifests
from sbert_search.shards import manifest as shard_manifests
from sbert_search.shards.routing import shards_of_hashes
from sbert_search.shards.snapshot import ShardedSnapshot
from sbert_search.shards.states import is_sharded, open_shard, read_shard
from sbert_search.shards.store import open_state

_REMEDY = "Restore the whole sharded index from a backup, or build it again."


def check_index(path: Path) -> CheckReport:
    """Verify an index of either kind and report all damage; errors as for `check.check`."""
    return check_shards(path) if is_sharded(path) else check(path)


def check_shards(path: Path) -> CheckReport:
    """Verify all shards of a sharded index and report all damage, not only the first.

    Raises:
        NotAnIndex: The folder holds no sharded index.
        IndexStoreError: Shards have different settings, or a file cannot be read.
    """
    root = manifests.open_folder(path)
    problems: list[CorruptIndex] = []
    strays: list[str] = []
    n_files = size_bytes = 0
    try:
        records = shard_manifests.read(root).shards
    except CorruptIndex as error:
        return CheckReport((error,), (), 1, 0)
    for record in records:
        try:
            folder = open_shard(root, record)
            report = check_state(folder, read_shard(folder, record))
        except CorruptIndex as error:
            problems.append(error)
            continue
        problems += [_below(record.folder, error) for error in report.problems]
        strays += [f"{record.folder}/{name}" for name in report.strays]
        n_files, size_bytes = n_files + report.n_files, size_bytes + report.size_bytes
    if not problems:
        problems += _inconsistencies(open_state(path))
    return CheckReport(tuple(problems), tuple(strays), n_files, size_bytes)


def _below(folder: str, error: CorruptIndex) -> CorruptIndex:
    """Put the folder of the shard before the name of the damaged file in an error."""
    remedy = str(error).partition(f", got {error.got}. ")[2]
    return CorruptIndex(f"{folder}/{error.file}", error.expected, error.got, remedy)


def _inconsistencies(snapshot: ShardedSnapshot) -> Iterator[CorruptIndex]:
    """Check that ids are in the shards that they belong to, and that no two rows are equal."""
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
