"""Keep an index in sync with a folder: add new files, replace changed ones, delete gone ones.

Every file is read and hashed, since a size and a time can stay the same when the content changes;
reading is cheap beside embedding. The hash of its file is stored with each document. New and
changed documents are committed first, batch by batch; the last commit deletes the documents of
files and pages that are gone. So an interrupted run deletes nothing too early, and the next run
finishes the sync.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sbert_search.base.progress import note, progress
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import CorpusError, IndexStoreError
from sbert_search.index.building.build import note_resume_on_interrupt
from sbert_search.index.building.ingest import ingest, note_columns, require_memory
from sbert_search.index.building.model_check import require_agreement, require_mixable
from sbert_search.index.building.settings import ReadSettings
from sbert_search.index.building.synced_files import PATH, StoredFiles, stored_files
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import BuildCursor
from sbert_search.index.store import IndexStore
from sbert_search.index.writer import IndexWriter
from sbert_search.text.documents import CorpusReader, Survey
from sbert_search.text.formats.files import (
    fingerprint,
    fingerprint_before_last,
    list_files,
    read_bytes,
)
from sbert_search.text.formats.rows import BadRow, Reject, RejectLog, RowLimit, printable
from sbert_search.text.sources import TABLES, SourceFile, files_of, path_below

COMMIT_ROWS = 1024  # documents of a block, which are committed together

TAKEN = "a document of another source has this id; rename the file or delete that document"


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncReport:
    """What a sync did, or would do.

    Attributes:
        added: Paths of files that the index did not hold, relative to the root of the index.
        replaced: Paths of files that changed.
        deleted: Paths of files that are gone, or that hold no text any more.
        unchanged: Number of files whose content did not change.
        failed: Why a file or folder cannot be read or indexed, by its path. Documents of this file
            or folder that the index holds stay.
        kept: The paths in ``failed`` of which the index holds documents.
        rejects_file: File that lists what is in ``failed``; None if ``failed`` is empty, or if
            nothing was written.
        documents: Number of documents of the index after the sync; in a dry run, before the sync.
        dry_run: Whether the sync only reported what it would do.
        seconds: Time of the whole sync.
    """

    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unchanged: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    rejects_file: Path | None = None
    documents: int = 0
    dry_run: bool = False
    seconds: float = 0.0

    @property
    def changes(self) -> int:
        """Number of files added, replaced and deleted."""
        return len(self.added) + len(self.replaced) + len(self.deleted)


@dataclass(slots=True)
class FolderScan:
    """The files of a folder, read once."""

    source: SourceFile  # names files by their paths relative to the root of the index
    # Fingerprint of each file that is not blank, by path.
    prints: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # why it cannot be read, by file or folder
    unlisted: list[str] = field(default_factory=list)  # folders that cannot be listed
    left_out: str = ""  # description of the files that are not read, or ""

    def note_left_out(self) -> None:
        """Print a note about the files that are not read."""
        if self.left_out:
            note(f"{self.source.shown}: not read: {self.left_out}.")

    @property
    def is_empty(self) -> bool:
        """Whether no file has content, and reading failed for no file or folder."""
        return not (self.prints or self.failed)

    def may_hold(self, path: str) -> bool:
        """Whether a file without a fingerprint may exist: the file or its folder cannot be read."""
        return path in self.failed or any(
            above in ("", ".") or path.startswith(f"{above}/") for above in self.unlisted
        )


@dataclass(slots=True)
class _Plan:
    """The paths of files by what a sync does with them, before any file is parsed."""

    stored: StoredFiles = field(default_factory=StoredFiles)
    new: list[str] = field(default_factory=list)  # the index holds no document of the file
    # The index lacks a document of the present content, or holds one of an earlier content.
    changed: list[str] = field(default_factory=list)
    # The index holds documents, and the file no longer exists.
    gone: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)  # as in `StoredFiles`
    unchanged: int = 0  # number of files


def require_place(folder: Path, root: Path | None) -> SourceFile:
    """Return a folder by its path below the root; without a root, it becomes the root."""
    top = Path(os.path.abspath(folder)) if root is None else root
    below = path_below(folder, top)
    if below is None:
        raise IndexStoreError(
            f"The index holds files of {root}, and {folder} does not lie in that folder. If the "
            "folder was moved here, pass --moved. Else make another index for it, or sync a folder "
            "that holds both."
        )
    name = "" if below == "." else below
    return SourceFile(folder, printable(folder), name, "folder", top)


def scan_folder(source: SourceFile, memory_bytes: int | None = None) -> FolderScan:
    """Read and hash every file of a folder; the budget, if any, limits the size of a file."""
    scan, limit = FolderScan(source), RowLimit.within(memory_bytes)

    def unlisted(path: Path, error: OSError) -> None:
        below = path_below(path, source.path) or "."
        name = source.name if below == "." else "/".join(filter(None, (source.name, below)))
        scan.unlisted.append(name)
        scan.failed[name or "."] = f"cannot be listed: {error.strerror}"

    if not source.path.is_dir():
        return scan
    listing = list_files(source.path, TABLES, on_unlisted=unlisted)
    scan.left_out = listing.left_out("add them by `index upsert`")
    names = tuple(listing.names)
    with progress("Reading files", len(names), "files") as advance:
        for file in files_of(replace(source, only=names)):
            try:
                data = read_bytes(file, limit)
                if data.strip():
                    scan.prints[file.doc_id] = fingerprint(data)
            except BadRow as bad:
                scan.failed[file.doc_id] = bad.reason
            advance(1)
    return scan


def require_files(scan: FolderScan, *, allow_empty: bool) -> None:
    """Refuse a folder without files, such as an unmounted disk."""
    if scan.is_empty and not allow_empty:
        what = "has no file that can be read" if scan.source.path.is_dir() else "is not a folder"
        raise CorpusError(
            f"{scan.source.shown}: {what}, so a sync would delete all its documents. Is the disk "
            "mounted? If the folder is meant to be empty, pass --allow-empty."
        )


def preview(scan: FolderScan, settings: ReadSettings) -> SyncReport:
    """Report what the first sync of a folder would do, before an index exists."""
    scan.note_left_out()
    plan = _Plan(new=list(scan.prints))
    parsed = _Parsed.of(scan, plan.new, settings, None) if plan.new else None
    return _report(scan, plan, parsed, dry_run=True)


def sync_folder(
    store: IndexStore,
    scan: FolderScan,
    settings: ReadSettings,
    open_model: Callable[[], TextEmbedder],
    *,
    dry_run: bool = False,
    allow_inexact: bool = False,
    memory_bytes: int | None = None,
    settle: Callable[[IndexWriter], None],
) -> SyncReport:
    """Make the documents of a folder's files equal to the files that the scan found.

    The model is opened only if there is a text to embed. Documents of other sources stay.
    """
    scan.note_left_out()
    store.refresh()
    work = _Work.of(scan, settings, store, memory_bytes)
    report = replace(work.report(dry_run=dry_run), documents=store.snapshot.n_docs)
    root = str(scan.source.root)
    is_known = (build := store.snapshot.manifest.build) is not None and build.root == root
    if dry_run or (is_known and not report.changes and not work.paths):
        return report
    embedder, agreed = open_model() if work.paths else None, store.snapshot.settings
    with note_resume_on_interrupt(store), store.writer() as writer:
        if writer.snapshot is not work.state:  # another process has committed since
            work = _Work.of(scan, settings, store, memory_bytes)
            report = work.report(dry_run=False)
            embedder = embedder or (open_model() if work.paths else None)
        if embedder and (changed := writer.snapshot.settings) != agreed:
            require_agreement(changed, embedder, allow_inexact=allow_inexact)
            require_mixable(changed, embedder)
        _record_root(writer, settings, root)
        if (parsed := work.parsed) and embedder:
            predicted = settings.predicted
            survey = predicted.survey(parsed.survey, work.state.columns)
            note_columns(work.state, survey.columns)
            writer.add_columns(survey.columns)
            ingest(
                writer,
                parsed.reader,
                embedder,
                survey=survey,
                mode="upsert",
                on_truncate=settings.on_truncate,
                chunking=settings.chunking(None),
                memory_bytes=memory_bytes,
                by_time=True,
                predicted=predicted,
            )
        doomed = _doomed(writer, scan, report.deleted, work.paths)
        writer.delete(doomed)
        settle(writer)
        rejects_file = _list_failures(writer.path, work)
    return replace(report, documents=store.snapshot.n_docs, rejects_file=rejects_file)


@dataclass(frozen=True, slots=True)
class _Parsed:
    """New and changed files, parsed once before anything is written."""

    reader: CorpusReader
    survey: Survey
    paths: set[str]  # files that gave documents
    rejects: dict[str, Reject]  # by the path of the file

    @classmethod
    def of(
        cls,
        scan: FolderScan,
        paths: Iterable[str],
        settings: ReadSettings,
        store: IndexStore | None,
        memory_bytes: int | None = None,
    ) -> _Parsed:
        files = _only(scan.source, paths)
        # `stored_files` finds documents by the column `PATH` only if it has strings.
        types = {name: kind for name, kind in settings.column_types.items() if name != PATH}
        reader = CorpusReader(
            files,
            on_error="skip",
            columns=store.snapshot.columns if store else None,
            metadata_fields=settings.metadata_fields,
            column_types=types,
            widens=store.snapshot.widens if store else lambda name: True,
            batch_rows=COMMIT_ROWS,
            memory_bytes=memory_bytes,
        )
        survey = reader.survey(allow_empty=True)
        path_of = {file.shown: file.doc_id for file in files_of(files)}
        found, rejects = set[str](), dict[str, Reject]()
        for batch in reader.batches():
            found.update(str(document.metadata[PATH]) for document in batch.documents)
            for reject in batch.rejects:
                rejects[path_of[reject.source.rpartition(":")[0]]] = reject
        return cls(reader, survey, found, rejects)


@dataclass(frozen=True, slots=True)
class _Work:
    """The changes that a state of the index needs to agree with the folder."""

    state: Snapshot
    scan: FolderScan
    plan: _Plan
    parsed: _Parsed | None

    @classmethod
    def of(
        cls, scan: FolderScan, settings: ReadSettings, store: IndexStore, memory_bytes: int | None
    ) -> _Work:
        """Compare the folder with the opened state, and parse the new and the changed files."""
        stored = stored_files(store.snapshot, scan.source.name, scan.prints)
        plan, parsed = _compare(scan, stored), None
        if unparsed := [*plan.new, *plan.changed]:
            require_memory(memory_bytes)
            parsed = _Parsed.of(scan, unparsed, settings, store, memory_bytes)
        return cls(store.snapshot, scan, plan, parsed)

    @property
    def paths(self) -> set[str]:
        """The new and changed files that have documents."""
        return self.parsed.paths if self.parsed else set()

    def report(self, *, dry_run: bool) -> SyncReport:
        return _report(self.scan, self.plan, self.parsed, dry_run=dry_run)


def _only(source: SourceFile, paths: Iterable[str]) -> SourceFile:
    start = len(source.name) + 1 if source.name else 0
    return replace(source, only=tuple(path[start:] for path in paths))


def _compare(scan: FolderScan, stored: StoredFiles) -> _Plan:
    plan = _Plan(stored)
    for path, own in scan.prints.items():
        if path in stored.taken:
            plan.taken.append(path)
        elif path not in stored.contents:
            plan.new.append(path)
        elif is_whole(stored.contents[path].values(), own, alone=True):
            plan.unchanged += 1
        else:
            plan.changed.append(path)
    plan.gone = [
        path for path in stored.contents if path not in scan.prints and not scan.may_hold(path)
    ]
    return plan


def is_whole(contents: Collection[int], own: int, *, alone: bool) -> bool:
    """Whether all documents of a file are stored, given their content hashes.

    They are if the last document is, since it is committed last. With ``alone``, the result is
    False also if documents of an earlier content of the file are stored.
    """
    return own in contents and not (alone and set(contents) - _prints(own))


def _prints(own: int) -> set[int]:
    """Return the content hashes of the documents of a file with this fingerprint."""
    return {own, fingerprint_before_last(own)}


def _report(scan: FolderScan, plan: _Plan, parsed: _Parsed | None, *, dry_run: bool) -> SyncReport:
    found = parsed.paths if parsed else set[str]()
    rejects = parsed.rejects if parsed else {}
    broken = {path: reject.reason for path, reject in rejects.items()}
    failed = {**_not_read(scan, plan), **broken}
    textless = [path for path in plan.changed if path not in found and path not in broken]
    return SyncReport(
        added=tuple(path for path in plan.new if path in found),
        replaced=tuple(path for path in plan.changed if path in found),
        deleted=tuple(sorted([*plan.gone, *textless])),
        unchanged=plan.unchanged,
        failed=failed,
        kept=tuple(path for path in failed if _is_held(path, plan.stored)),
        dry_run=dry_run,
    )


def _not_read(scan: FolderScan, plan: _Plan) -> dict[str, str]:
    """Return, by path, why a file or folder was not parsed: unreadable, or the id is taken."""
    return {**scan.failed, **dict.fromkeys(plan.taken, TAKEN)}


def _is_held(path: str, stored: StoredFiles) -> bool:
    """Whether the index holds documents of a file, or of files of a folder."""
    return path in stored.contents or any(
        path in ("", ".") or file.startswith(f"{path}/") for file in stored.contents
    )


def _list_failures(folder: Path, work: _Work) -> Path | None:
    """Write the list of files and folders that cannot be read, and return its path.

    If everything can be read, remove an earlier list, and return None. The list replaces that of
    `ingest`, which lacks files and folders that could not be opened.
    """
    source, not_read = work.scan.source, _not_read(work.scan, work.plan)
    rejects = [
        *(Reject(_shown(source, path), reason) for path, reason in not_read.items()),
        *(work.parsed.rejects.values() if work.parsed else ()),
    ]
    log = RejectLog(folder)
    if rejects:
        log.append(rejects)
    log.finish(was_read=False)
    return log.path if rejects else None


def _shown(source: SourceFile, path: str) -> str:
    """Return how messages show a path that is relative to the root."""
    below = path[len(source.name) + 1 :] if source.name else path
    return f"{source.shown}/{printable(below)}" if below not in ("", ".") else source.shown


def _record_root(writer: IndexWriter, settings: ReadSettings, root: str) -> None:
    build = writer.snapshot.manifest.build
    if build is None or build.root != root:
        build = build or BuildCursor(
            source_sha256="", rows=0, settings=settings.stored_values(), finished=True
        )
        writer.commit(None, cursor=replace(build, root=root))


def _doomed(
    writer: IndexWriter, scan: FolderScan, gone: Iterable[str], parsed: Iterable[str]
) -> list[str]:
    """Return the ids of the documents to delete, after new and changed files were committed.

    All documents of the files in ``gone`` are deleted, and of those in ``parsed`` the documents of
    earlier contents.
    """
    stored = stored_files(writer.snapshot, scan.source.name, scan.prints).contents
    doomed = [doc_id for path in gone for doc_id in stored.get(path, ())]
    for path in parsed:
        own, contents = scan.prints[path], stored.get(path, {})
        if is_whole(contents.values(), own, alone=False):
            doomed += [doc_id for doc_id, have in contents.items() if have not in _prints(own)]
    return doomed
