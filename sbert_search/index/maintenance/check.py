"""Full verification of an index: the hash of every file, and the consistency of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sbert_search.errors import CorruptIndex, IndexStoreError
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import (
    columns as columns_of,
)
from sbert_search.index.storage import (
    ids,
    transaction,
)
from sbert_search.index.storage import (
    manifest as manifests,
)
from sbert_search.index.storage.manifest import OPEN_TRIES, FileRecord, Manifest
from sbert_search.index.storage.segments import REMAKE, Segment, check_hash, open_checked
from sbert_search.runtime.disk.folders import Folder
from sbert_search.runtime.progress import progress

BLOCK_ROWS = 65_536  # vectors read at a time


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a full verification.

    Attributes:
        problems: The damage found; empty if the index is sound.
        strays: Files that the manifest does not name; they are harmless, and `repair` removes them.
        n_files: Number of files hashed.
        size_bytes: Bytes of the files hashed.
    """

    problems: tuple[CorruptIndex, ...]
    strays: tuple[str, ...]
    n_files: int
    size_bytes: int


def check(path: Path) -> CheckReport:
    """Verify a whole index and report all damage, not only the first.

    All files are opened before the first is hashed, so writers may continue meanwhile. If a writer
    removes a file before it is opened, the newer state of the index is checked instead.

    Raises:
        NotAnIndex: The folder holds no index.
        IndexStoreError: Writers changed the index in each attempt to open its files.
    """
    for _ in range(OPEN_TRIES):
        folder = manifests.open_folder(path)
        try:
            manifest = manifests.read(folder)
        except CorruptIndex as error:
            return CheckReport((error,), (), 1, 0)
        opened = _Opened(folder, manifest)
        if opened.is_complete or (folder.is_at_its_path() and manifests.read(folder) == manifest):
            return _report(folder, manifest, opened)
    raise IndexStoreError(f"{path} changed {OPEN_TRIES} times while it was opened; try again.")


def damaged_derived_files(folder: Folder, manifest: Manifest) -> set[str]:
    """Return the names of derived files that differ from their records."""
    return {
        problem.file
        for record in manifest.derived
        for problem in _damage(record, _mapped(folder, record))
    }


class _Opened:
    """One state of an index with all its files mapped, or an error for each unreadable file.

    Attributes:
        views: The mapped bytes of each file, or its error.
        snapshot: The state without its derived files (FAISS, postings), or the error.
        is_complete: Whether all files could be opened.
    """

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
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


def _report(folder: Folder, manifest: Manifest, opened: _Opened) -> CheckReport:
    derived = {record.name for record in manifest.derived}
    primary = [record for record in manifest.files if record.name not in derived]
    problems: list[CorruptIndex] = []
    with progress("Verifying", manifest.size_bytes >> 20, "MiB") as advance:
        for record in primary:
            problems += _damage(record, opened.views[record])
            advance(record.size_bytes >> 20)
        problems += _inconsistencies(opened.snapshot) if not problems else ()
        for record in manifest.derived:
            problems += _damage(record, opened.views[record], REMAKE)
            advance(record.size_bytes >> 20)
    needed = {record.name for record in manifest.files}
    strays = tuple(name for name in transaction.numbered_names(folder) if name not in needed)
    return CheckReport(tuple(problems), strays, len(needed), manifest.size_bytes)


def _mapped(folder: Folder, record: FileRecord) -> memoryview | CorruptIndex:
    try:
        return open_checked(folder, record, hash_up_to=0)
    except FileNotFoundError:
        return CorruptIndex(record.name, "the file", "no such file")
    except CorruptIndex as error:
        return error


def _damage(
    record: FileRecord, view: memoryview | CorruptIndex, remedy: str = ""
) -> Iterator[CorruptIndex]:
    try:
        if isinstance(view, CorruptIndex):
            raise view
        check_hash(view, record)
    except CorruptIndex as error:
        yield CorruptIndex(error.file, error.expected, error.got, remedy)


def _inconsistencies(snapshot: Snapshot | CorruptIndex) -> Iterator[CorruptIndex]:
    """Compare the parts of an index whose files have the right hashes; yield the first error."""
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
    """Check the tombstones, which list the dead (deleted or replaced) rows.

    The dead rows must make up whole documents. The numbers of live rows and documents must be those
    of the manifest.
    """
    n_rows = n_docs = 0
    for i, segment in enumerate(snapshot.segments):
        live = snapshot.live(i)
        marks = np.ones(segment.n_rows, bool) if live is None else live
        n_rows += int(marks.sum())
        n_docs += int((segment.chunks[marks] == 0).sum())
        whole = marks[np.arange(segment.n_rows) - segment.chunks] == marks
        _demand("del/", "rows of whole documents", bool(whole.all()))
    counts = (snapshot.manifest.n_rows, snapshot.manifest.n_docs)
    _demand("del/", f"{counts} live rows and documents", counts == (n_rows, n_docs))


def _check_rows(segment: Segment) -> None:
    """Check stored row and chunk numbers, and that the rows of a document are consecutive."""
    name, rows, chunks = segment.record.docs.name, segment.rows, segment.chunks
    _demand(name, "ascending rows", bool((segment.int_column("row", np.int64) == rows).all()))
    stored_chunks = segment.int_column("chunk", np.int32)
    _demand(name, "passages 0, 1, 2, ...", bool((stored_chunks == chunks).all()))
    consecutive = bool((np.diff(rows)[chunks[1:] > 0] == 1).all())
    _demand(name, "documents with consecutive passages", consecutive)
    segment.table(columns_of.schema(segment.record.columns).names)


def _check_ids(segment: Segment) -> None:
    """Check that the id table is sorted and has the hashes of the documents' ids and their rows."""
    starts = segment.firsts
    hashes = ids.hash_ids(segment.doc_ids(starts))
    expected = ids.make_table(hashes, segment.rows[starts], segment.ids[2])
    same = bool((segment.ids[:2] == expected[:2]).all())
    _demand(segment.record.ids.name, "the ids of the documents", same)


def _check_vectors(segment: Segment) -> None:
    """Check that all elements of the vectors are finite."""
    for start in range(0, segment.n_rows, BLOCK_ROWS):
        finite = bool(np.isfinite(segment.vectors[start : start + BLOCK_ROWS]).all())
        _demand(segment.record.vectors.name, "finite elements", finite)


def _demand(name: str, expected: str, holds: bool) -> None:
    if not holds:
        raise CorruptIndex(name, expected, "something else")
