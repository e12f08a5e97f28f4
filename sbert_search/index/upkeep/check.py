"""Full verification of an index: the hash of every file, and the consistency of the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.folders import Folder
from sbert_search.base.progress import progress
from sbert_search.errors import CorruptIndex
from sbert_search.index.shards.manifest import ShardManifest, ShardRecord, shards_of_hashes
from sbert_search.index.shards.opening import (
    in_shard,
    joined,
    naming_shard,
    open_shard,
    read_shard,
    require_alike,
)
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import ids, transaction
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import OPEN_TRIES, FileRecord, Manifest
from sbert_search.index.storage.segments import Segment, check_hash, damage, open_checked
from sbert_search.index.store import always_changing, read_state

BLOCK_ROWS = 65_536  # vectors read at a time


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a full verification.

    Attributes:
        problems: The damage found; empty if the index is sound.
        strays: Files that the manifest does not name; they are harmless, and `repair` removes them.
        n_files: Number of files hashed.
        size_bytes: Bytes of the files hashed.

    Example:
        >>> Index.open("my.index").check().problems
        ()
    """

    problems: tuple[CorruptIndex, ...]
    strays: tuple[str, ...]
    n_files: int
    size_bytes: int


def check(path: Path) -> CheckReport:
    """Verify a whole index and report every damaged file.

    If documents, vectors, ids and tombstones have the right hashes, the first inconsistency between
    them is reported, too. If all files of a sharded index are sound, each document must be in the
    shard to which its id belongs, and no two live rows may have the same number. All files are
    opened before the first is hashed, so writers may continue. If a writer removes a file before
    that, the newer state is checked instead.
    """
    for _ in range(OPEN_TRIES):
        folder = manifests.open_folder(path)
        try:
            state = read_state(folder)
        except CorruptIndex as error:
            return CheckReport((error,), (), 1, 0)
        if isinstance(state, Manifest):
            opened: dict[str, MappedState | CorruptIndex] = {"": MappedState(folder, state)}
        else:
            opened = {record.folder: _opened(folder, record) for record in state.shards}
        is_complete = all(isinstance(s, MappedState) and s.is_complete for s in opened.values())
        # If the state is still the newest one, a file that cannot be opened is damage.
        if is_complete or (folder.is_at_its_path() and read_state(folder) == state):
            return _report(folder, state, opened)
    raise always_changing(path)


def _opened(root: Folder, record: ShardRecord) -> MappedState | CorruptIndex:
    try:
        folder = open_shard(root, record)
        with naming_shard(record.folder):
            return MappedState(folder, read_shard(folder, record))
    except CorruptIndex as error:
        return error


def _report(
    root: Folder, state: Manifest | ShardManifest, opened: Mapping[str, MappedState | CorruptIndex]
) -> CheckReport:
    problems: list[CorruptIndex] = []
    strays: list[str] = []
    snapshots: list[Snapshot] = []
    n_files = size_bytes = 0
    for name, part in opened.items():
        if isinstance(part, CorruptIndex):
            problems.append(part)
            continue
        report = part.report()
        problems += [in_shard(name, error) for error in report.problems]
        strays += [f"{name}/{stray}" if name else stray for stray in report.strays]
        n_files, size_bytes = n_files + report.n_files, size_bytes + report.size_bytes
        if isinstance(part.snapshot, Snapshot):
            snapshots.append(part.snapshot)
    if not problems and isinstance(state, ShardManifest):
        require_alike(root.path, snapshots)
        problems += _misplaced(joined(root, state, snapshots))
    return CheckReport(tuple(problems), tuple(strays), n_files, size_bytes)


def _misplaced(snapshot: Snapshot) -> Iterator[CorruptIndex]:
    """Find documents in a shard to which their ids do not belong, and rows with equal numbers."""
    remedy = "Restore the whole sharded index from a backup, or build it again."
    for number, (name, shard) in enumerate(zip(snapshot.part_folders, snapshot.parts, strict=True)):
        for segment in shard.segments:
            actual = shards_of_hashes(segment.ids[0], snapshot.n_shards)
            if (wrong := actual != number).any():
                expected = f"only ids of shard {number}"
                got = f"an id of shard {actual[wrong][0]}"
                yield CorruptIndex(f"{name}/{segment.record.ids.name}", expected, got, remedy)
    rows = snapshot.live_rows()
    if (twice := rows[1:] == rows[:-1]).any():
        got = f"row {rows[1:][twice][0]} in two shards"
        yield CorruptIndex(manifests.SHARDS, "shards without common rows", got, remedy)


def damaged_derived_files(folder: Folder, manifest: Manifest) -> set[str]:
    """Return the names of derived files that differ from their records."""
    return {
        problem.file
        for record in manifest.derived
        for problem in _damage(record, _mapped(folder, record))
    }


class MappedState:
    """One state of an index with all its files mapped, or an error for each unreadable file.

    ``snapshot`` is the state without its derived files (FAISS, postings), or the error.
    """

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        with folder.kept_open() as opened:
            self.views = {record: _mapped(opened, record) for record in manifest.files}
        primary = manifest.without([record.name for record in manifest.derived])
        self.snapshot: Snapshot | CorruptIndex
        try:
            self.snapshot = Snapshot(folder, primary)
        except FileNotFoundError as error:
            self.snapshot = CorruptIndex(str(error.filename), "the file", "no such file")
        except CorruptIndex as error:
            self.snapshot = error
        opened_parts = [*self.views.values(), self.snapshot]
        self.is_complete = not any(isinstance(part, CorruptIndex) for part in opened_parts)

    def report(self) -> CheckReport:
        """Verify the files, and return all damage."""
        folder, manifest = self._folder, self._manifest
        derived = {record.name for record in manifest.derived}
        primary = [record for record in manifest.files if record.name not in derived]
        problems: list[CorruptIndex] = []
        with progress("Verifying", manifest.size_bytes >> 20, "MiB") as advance:
            for record in primary:
                problems += _damage(record, self.views[record])
                advance(record.size_bytes >> 20)
            problems += _inconsistencies(self.snapshot) if not problems else ()
            for record in manifest.derived:
                problems += _damage(record, self.views[record])
                advance(record.size_bytes >> 20)
        needed = {record.on_disk for record in manifest.files}
        strays = tuple(name for name in transaction.numbered_names(folder) if name not in needed)
        return CheckReport(tuple(problems), strays, len(needed), manifest.size_bytes)


def _mapped(folder: Folder, record: FileRecord) -> memoryview | CorruptIndex:
    try:
        return open_checked(folder, record, hash_up_to=0)
    except FileNotFoundError:
        return damage(record.name, "the file", "no such file")
    except CorruptIndex as error:
        return error


def _damage(record: FileRecord, view: memoryview | CorruptIndex) -> list[CorruptIndex]:
    try:
        if isinstance(view, CorruptIndex):
            return [view]
        check_hash(view, record)
    except CorruptIndex as error:
        return [error]
    return []


def _inconsistencies(snapshot: Snapshot | CorruptIndex) -> Iterator[CorruptIndex]:
    """Compare the files of an index, whose hashes are right, with each other; yield one error."""
    try:
        if isinstance(snapshot, CorruptIndex):
            raise snapshot
        _check_tombstones(snapshot)
        for segment in snapshot.segments:
            _check_rows(segment)
            _check_ids(segment)
            _check_vectors(segment)
    except CorruptIndex as error:
        yield error


def _check_tombstones(snapshot: Snapshot) -> None:
    """Check that tombstones list the rows of whole documents, and the manifest's counts."""
    n_rows = n_docs = 0
    for i, segment in enumerate(snapshot.segments):
        live = snapshot.live(i)
        marks = np.ones(segment.n_rows, bool) if live is None else live
        n_rows += int(marks.sum())
        n_docs += int((segment.chunks[marks] == 0).sum())
        partly_dead = marks[np.arange(segment.n_rows) - segment.chunks] != marks
        if (at := _first(partly_dead)) is not None:
            got = f"row {segment.rows[at]} of a document that has live and dead rows"
            raise CorruptIndex("del/", "rows of whole documents", got)
    counts = (snapshot.manifest.n_rows, snapshot.manifest.n_docs)
    if counts != (n_rows, n_docs):
        expected = f"{counts[0]} live rows and {counts[1]} live documents"
        raise CorruptIndex("del/", expected, f"{n_rows} and {n_docs}")


def _check_rows(segment: Segment) -> None:
    """Check stored row and chunk numbers, and that the rows of a document are consecutive."""
    name, rows, chunks = segment.record.docs.name, segment.rows, segment.chunks
    stored_rows = segment.int_column("row", np.int64)
    if (at := _first(stored_rows != rows)) is not None:
        raise CorruptIndex(name, f"row {rows[at]} at position {at}", f"row {stored_rows[at]}")
    stored_chunks = segment.int_column("chunk", np.int32)
    if (at := _first(stored_chunks != chunks)) is not None:
        expected = f"passage {chunks[at]} in row {rows[at]}"
        raise CorruptIndex(name, expected, f"passage {stored_chunks[at]}")
    if (at := _first((chunks[1:] > 0) & (np.diff(rows) != 1))) is not None:
        expected = f"row {rows[at] + 1} after row {rows[at]} of a document"
        raise CorruptIndex(name, expected, f"row {rows[at + 1]}")
    segment.table(columns_of.schema(segment.record.columns).names)


def _check_ids(segment: Segment) -> None:
    """Check that the id table is sorted and has the id hash and the first row of each document."""
    starts = segment.firsts
    hashes = ids.hash_ids(segment.doc_ids(starts))
    expected = ids.make_table(hashes, segment.rows[starts], segment.ids[2])
    if (at := _first((segment.ids[:2] != expected[:2]).any(axis=0))) is not None:
        right, wrong = (
            f"id hash {hash_:016x} with row {row}"
            for hash_, row in (table[:2, at] for table in (expected, segment.ids))
        )
        raise CorruptIndex(segment.record.ids.name, f"{right} in column {at}", wrong)


def _check_vectors(segment: Segment) -> None:
    """Check that all elements of the vectors are finite."""
    for start in range(0, segment.n_rows, BLOCK_ROWS):
        block = np.asarray(segment.vectors[start : start + BLOCK_ROWS])
        infinite = ~np.isfinite(block)
        if (at := _first(infinite.any(axis=1))) is not None:
            got = f"{block[at][infinite[at]][0]} in row {segment.rows[start + at]}"
            raise CorruptIndex(segment.stored.file.name, "finite elements", got)


def _first(marks: NDArray[np.bool_]) -> int | None:
    return int(marks.argmax()) if marks.any() else None
