"""The commands `index check` and `index tune` for a sharded index.

Every file of every shard is read. If all files are sound, two more checks follow: each document
must be in the shard to which its id belongs, and no two live rows may have the same number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sbert_search.base.folders import Folder
from sbert_search.errors import CorruptIndex
from sbert_search.index.settings import IndexSpec
from sbert_search.index.shards import manifest as shard_manifests
from sbert_search.index.shards.manifest import ShardManifest, ShardRecord, shards_of_hashes
from sbert_search.index.shards.snapshot import (
    ShardedSnapshot,
    in_shard,
    is_sharded,
    naming_shard,
    open_shard,
    read_shard,
    require_alike,
)
from sbert_search.index.shards.writer import ShardedWriter
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import OPEN_TRIES, Manifest
from sbert_search.index.storage.transaction import Transaction
from sbert_search.index.store import always_changing
from sbert_search.index.tuning.measuring import Search
from sbert_search.index.tuning.sweep import Candidate
from sbert_search.index.tuning.trials import Built, FullTrials, without_faiss
from sbert_search.index.upkeep import compaction
from sbert_search.index.upkeep.check import CheckReport, MappedState, check
from sbert_search.index.writer import IndexWriter

_REMEDY = "Restore the whole sharded index from a backup, or build it again."


def check_index(path: Path) -> CheckReport:
    """Verify an index, with or without shards, and report every damaged file."""
    return check_shards(path) if is_sharded(path) else check(path)


def check_shards(path: Path) -> CheckReport:
    """Verify all shards of a sharded index and report every damaged file, not only the first.

    All files of all shards are opened before the first is hashed. If a writer removes a file before
    this function opens it, the newer state of the index is checked instead.
    """
    for _ in range(OPEN_TRIES):
        root = manifests.open_folder(path)
        try:
            manifest = shard_manifests.read(root)
        except CorruptIndex as error:
            return CheckReport((error,), (), 1, 0)
        opened = [_opened(root, record) for record in manifest.shards]
        is_complete = all(isinstance(s, MappedState) and s.is_complete for s in opened)
        if is_complete or (root.is_at_its_path() and shard_manifests.read(root) == manifest):
            return _report(root, manifest, opened)
    raise always_changing(path)


def _opened(root: Folder, record: ShardRecord) -> MappedState | CorruptIndex:
    try:
        folder = open_shard(root, record)
        with naming_shard(record):
            return MappedState(folder, read_shard(folder, record))
    except CorruptIndex as error:
        return error


def _report(
    root: Folder, manifest: ShardManifest, opened: Sequence[MappedState | CorruptIndex]
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
        problems += [in_shard(record.folder, error) for error in report.problems]
        strays += [f"{record.folder}/{name}" for name in report.strays]
        n_files, size_bytes = n_files + report.n_files, size_bytes + report.size_bytes
        if isinstance(state.snapshot, Snapshot):
            snapshots.append(state.snapshot)
    if not problems:
        require_alike(root.path, snapshots)
        problems += _inconsistencies(ShardedSnapshot(root, manifest, snapshots))
    return CheckReport(tuple(problems), tuple(strays), n_files, size_bytes)


def _inconsistencies(snapshot: ShardedSnapshot) -> Iterator[CorruptIndex]:
    """Find documents in a shard to which their ids do not belong, and rows with equal numbers."""
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


def commit_best(
    writer: IndexWriter, final: FullTrials, chosen: Sequence[Candidate], memory_bytes: int | None
) -> None:
    """Build the finalists of a tuning in every shard, and commit the best in all of them.

    Their search settings are chosen by searches of all shards together.
    """
    assert isinstance(writer, ShardedWriter)
    with writer.together() as shards:
        build = partial(_built, writer.snapshot, shards, memory_bytes)
        best, tuning = final.decide(chosen, build)
        for shard, state in zip(shards, best.manifests, strict=True):
            settings = replace(state.settings, spec=tuning.verified.spec)
            new = replace(state.with_settings(settings), tuning=tuning)
            shard.rewrite(partial(_state, new))


def _built(
    snapshot: ShardedSnapshot,
    writers: Sequence[IndexWriter],
    memory_bytes: int | None,
    spec: IndexSpec,
) -> Built:
    """Build the FAISS files of a spec in every shard, and return how to search them."""
    for writer in writers:
        writer.rewrite(partial(_with_ann, writer, spec, memory_bytes, len(writers)))
    states = [writer.snapshot for writer in writers]

    def search_by(spec: IndexSpec) -> Search:
        return snapshot.with_states([state.with_spec(spec) for state in states]).search

    return Built(tuple(state.manifest for state in states), search_by)


def _with_ann(
    writer: IndexWriter, spec: IndexSpec, memory_bytes: int | None, n_shards: int, work: Transaction
) -> Manifest:
    new = without_faiss(writer.snapshot.manifest, spec)
    return compaction.with_ann(
        work, writer.snapshot, new, memory_bytes=memory_bytes, n_shards=n_shards
    )


def _state(manifest: Manifest, work: Transaction) -> Manifest:
    """Return ``manifest``, so that `IndexWriter.rewrite` commits it; no file is written."""
    return manifest
