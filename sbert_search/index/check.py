"""Full verification of an index: every byte against its hash, every part against the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sbert_search.errors import CorruptIndex
from sbert_search.index import columns as columns_of
from sbert_search.index import ids, transaction
from sbert_search.index import manifest as manifests
from sbert_search.index.manifest import FileRecord, Manifest
from sbert_search.index.segments import Segment, open_checked
from sbert_search.index.snapshot import Snapshot

BLOCK_ROWS = 65_536
REMAKE = "Searches do without it meanwhile; `sbert-search index repair` makes it again."


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a full verification found.

    Attributes:
        problems: What is damaged; empty means sound.
        strays: Files that the manifest does not name: harmless, removed by repair.
        n_files: Files hashed.
        size_bytes: Their bytes.
    """

    problems: tuple[CorruptIndex, ...]
    strays: tuple[str, ...]
    n_files: int
    size_bytes: int


def check(path: Path) -> CheckReport:
    """Verify a whole index, reporting all that is wrong rather than the first thing.

    Raises:
        NotAnIndex: The folder holds none.
    """
    try:
        manifest = manifests.read(path)
    except CorruptIndex as error:
        return CheckReport((error,), (), 1, 0)
    derived = {record.name for record in manifest.derived}
    given = [record for record in manifest.files if record.name not in derived]
    problems = [problem for record in given for problem in _hash(path, record)]
    problems += _inside(path, manifest) if not problems else ()
    problems += [problem for record in manifest.derived for problem in _hash(path, record, REMAKE)]
    needed = {record.name for record in manifest.files}
    there = (file.relative_to(path).as_posix() for file in transaction.numbered_files(path))
    strays = tuple(name for name in there if name not in needed)
    return CheckReport(tuple(problems), strays, len(needed), manifest.size_bytes)


def damaged_derived_files(path: Path, manifest: Manifest) -> set[str]:
    """Return the names of derived files that differ from their records."""
    return {problem.file for record in manifest.derived for problem in _hash(path, record)}


def _hash(path: Path, record: FileRecord, remedy: str = "") -> Iterator[CorruptIndex]:
    try:
        open_checked(path, record, hash_up_to=record.size_bytes)
    except FileNotFoundError:
        yield CorruptIndex(record.name, "the file", "no such file", remedy)
    except CorruptIndex as error:
        yield CorruptIndex(error.file, error.expected, error.got, remedy)


def _inside(path: Path, manifest: Manifest) -> Iterator[CorruptIndex]:
    """Compare the parts of an index whose files are the ones that were written."""
    try:
        snapshot = Snapshot(path, manifest.without([record.name for record in manifest.derived]))
        _check_tombstones(snapshot)
        for segment in snapshot.segments:
            _check_rows(segment)
            _check_ids(segment)
            _check_vectors(segment)
    except CorruptIndex as error:
        yield error


def _check_tombstones(snapshot: Snapshot) -> None:
    """Dead rows are distinct and are whole documents."""
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
    """Rows are those that they count for, and the rows of a document follow each other."""
    name, rows, chunks = segment.record.docs.name, segment.rows, segment.chunks
    _demand(name, "rows that rise", bool((segment.numbers("row", np.int64) == rows).all()))
    _demand(name, "its passages", bool((segment.numbers("chunk", np.int32) == chunks).all()))
    together = bool((np.diff(rows)[chunks[1:] > 0] == 1).all())
    _demand(name, "documents whose passages follow each other", together)
    segment.table(columns_of.schema(segment.record.columns).names)


def _check_ids(segment: Segment) -> None:
    """The id table is sorted and is what the documents give."""
    starts = segment.firsts
    hashes = ids.hash_ids(segment.doc_ids(starts))
    expected = ids.make_table(hashes, segment.rows[starts], segment.ids[2])
    same = bool((segment.ids[:2] == expected[:2]).all())
    _demand(segment.record.ids.name, "the ids of the documents", same)


def _check_vectors(segment: Segment) -> None:
    """Every number is finite."""
    for start in range(0, segment.n_rows, BLOCK_ROWS):
        finite = bool(np.isfinite(segment.vectors[start : start + BLOCK_ROWS]).all())
        _demand(segment.record.vectors.name, "finite numbers", finite)


def _demand(name: str, expected: str, holds: bool) -> None:
    if not holds:
        raise CorruptIndex(name, expected, "something else")
