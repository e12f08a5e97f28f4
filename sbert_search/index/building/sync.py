"""Keep an index in sync with a folder: add new files, replace changed ones, delete gone ones.

Every file is read and hashed, since a size and a time can stay the same when the content changes;
reading is cheap beside embedding. The hash of its file is stored with each document. New and
changed documents are committed first, batch by batch; the last commit deletes the documents of
files and pages that are gone. So an interrupted run deletes nothing too early, and the next run
finishes the sync.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import note, progress, warn
from sbert_search.config import from_mapping
from sbert_search.embed.pipeline import EmbeddedBatch
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import CorpusError, IndexStoreError
from sbert_search.index.building.build import note_resume_on_interrupt
from sbert_search.index.building.ingest import (
    KeepsPassages,
    cuts_stay,
    ingest,
    listed,
    note_columns,
    require_memory,
)
from sbert_search.index.building.model_check import require_agreement, require_mixable
from sbert_search.index.building.settings import ReadSettings
from sbert_search.index.building.synced_files import PATH, StoredFiles, stored_files
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import BuildCursor
from sbert_search.index.store import IndexStore
from sbert_search.index.writer import IndexWriter
from sbert_search.records import PAGE_MARK, Document
from sbert_search.text.documents import CorpusReader, Survey
from sbert_search.text.formats.files import (
    PDF_COLUMNS,
    Reading,
    fingerprint,
    fingerprint_before_last,
    list_files,
    read_bytes,
)
from sbert_search.text.formats.markup import NO_TEXT
from sbert_search.text.formats.rows import (
    BadRow,
    Reject,
    RejectLog,
    RowLimit,
    listed_rejects,
    printable,
)
from sbert_search.text.sources import TABLES, SourceFile, files_of, path_below

COMMIT_ROWS = 1024  # documents of a block, which are committed together

TAKEN = "a document of another source has this id; rename the file or delete that document"
KNOWN = (
    "the index read this file by add or upsert, before its folder was synced, so a sync leaves its "
    "document alone; delete the document (`index delete`), then sync again"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncReport:
    """What a sync did, or would do. For a table, ``added`` and so on are ids of documents.

    Attributes:
        added: Paths of files that the index did not hold, relative to the root of the index.
        replaced: Paths of files that changed.
        deleted: Paths of files that are gone, or that hold no text any more.
        unchanged: Number of files whose content did not change.
        failed: Why a file or folder cannot be read or indexed, by its path. Documents of this file
            or folder that the index holds stay.
        kept: The paths in ``failed`` of which the index holds documents.
        failed_before: Why a file cannot be indexed, by its path, if an earlier sync had it in
            ``failed``, it did not change since, and the index holds no earlier content of it.
        rejects_file: File that lists what is in ``failed`` and ``failed_before``; None if
            ``failed`` is empty, or if nothing was written.
        documents: Number of documents of the index after the sync; in a dry run, before the sync.
        dry_run: Whether the sync only reported what it would do.
        seconds: Time of the whole sync.

    Example:
        >>> index = Index.build("notes", model="hashing")
        >>> index.sync("notes").unchanged
        1
    """

    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unchanged: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    failed_before: dict[str, str] = field(default_factory=dict)
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

    def may_hold(self, path: str) -> bool:
        """Whether a file without a fingerprint may exist: the file or its folder cannot be read."""
        return path in self.failed or any(
            above in ("", ".") or path.startswith(f"{above}/") for above in self.unlisted
        )


def require_place(folder: Path, root: Path | None, settings: ReadSettings) -> SourceFile:
    """Return a folder by its path below the root; without a root, it becomes the root."""
    top = Path(os.path.abspath(folder)) if root is None else root
    below = path_below(folder, top)
    if below is None:
        why = "does not lie in that folder" if folder.exists() else "does not exist"
        raise IndexStoreError(
            f"The index holds files of {root}, and {folder} {why}. If the folder was moved here, "
            "pass --moved. To sync it too, pass a folder that holds both with --moved; then the "
            "ids of the files become paths in that folder. Or make another index for it."
        )
    name = "" if below == "." else below
    shown = printable(folder)
    return SourceFile(folder, shown, name, "folder", top, reading=settings.reading)


def scan_folder(source: SourceFile) -> FolderScan:
    """Read and hash every file of a folder; the budget, if any, limits the size of a file."""
    scan, limit = FolderScan(source), RowLimit.within()

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
                    scan.prints[file.doc_id] = fingerprint(data, file)
            except BadRow as bad:
                scan.failed[file.doc_id] = bad.reason
            advance(1)
    return scan


def require_files(scan: FolderScan, *, allow_empty: bool) -> None:
    """Refuse a folder without files, such as an unmounted disk."""
    if not (scan.prints or scan.failed or allow_empty):
        path, what = scan.source.path, "has no file that can be read"
        if not path.is_dir():
            what = "is not a folder" if path.exists() else "does not exist"
        raise CorpusError(
            f"{scan.source.shown}: {what}, so a sync would delete all its documents. Is the disk "
            "mounted? If the folder is meant to be empty, pass --allow-empty."
        )


def preview(scan: FolderScan, settings: ReadSettings) -> SyncReport:
    """Report what the first sync of a folder would do, before an index exists."""
    scan.note_left_out()
    return _Changes(scan, settings, None).report(dry_run=True)


def sync_folder(
    store: IndexStore,
    scan: FolderScan,
    settings: ReadSettings,
    open_model: Callable[[], TextEmbedder],
    *,
    dry_run: bool = False,
    allow_inexact: bool = False,
    settle: Callable[[IndexWriter], None],
) -> SyncReport:
    """Make the documents of a folder's files equal to the files that the scan found.

    The model is opened only if there is a text to embed. Documents of other sources stay.
    """
    scan.note_left_out()
    store.refresh()
    changes = _Changes(scan, settings, store.snapshot)
    report = replace(changes.report(dry_run=dry_run), documents=store.snapshot.n_docs)
    if lost := changes.lost:
        warn(
            "Values that partial updates gave to documents of changed or moved files are lost: "
            f"{listed(lost)}. Repeat these updates."
        )
    root = str(scan.source.root)
    is_known = _is_recorded(store.snapshot.manifest.build, settings, root)
    if dry_run or (is_known and not (report.changes or changes.found or changes.lists_more)):
        return report
    embedder, agreed = open_model() if changes.found else None, store.snapshot.settings
    with note_resume_on_interrupt(store), store.writer() as writer:
        if writer.snapshot is not changes.state:  # another process has committed since
            changes = _Changes(scan, settings, store.snapshot)
            report = changes.report(dry_run=False)
            embedder = embedder or (open_model() if changes.found else None)
        if embedder and (changed := writer.snapshot.settings) != agreed:
            require_agreement(changed, embedder, allow_inexact=allow_inexact)
            require_mixable(changed, embedder)
        build = writer.snapshot.manifest.build
        before = from_mapping(ReadSettings, build.settings) if build else ReadSettings()
        keeps = cuts_stay(settings, before)
        if not (changes.parsed and embedder):
            _record(writer, settings, root)
        else:
            reader, survey = changes.parsed
            predicted = settings.predicted
            survey = predicted.survey(survey, writer.snapshot.columns)
            note_columns(writer.snapshot, survey, settings.new_columns)
            _record(writer, settings, root)
            writer.add_columns(survey.columns)
            ingest(
                writer,
                reader,
                embedder,
                survey=survey,
                mode="upsert",
                on_truncate=settings.on_truncate,
                chunking=settings.chunking(None),
                by_time=True,
                predicted=predicted,
                find_unchanged=partial(changes.unchanged, writer, keeps),
                revise=changes.revised,
            )
        writer.delete(_doomed(writer, scan, report.deleted, changes.found))
        settle(writer)
        all_failures = _list_failures(writer.path, changes.failures())
    rejects_file = all_failures if report.failed else None
    return replace(report, documents=store.snapshot.n_docs, rejects_file=rejects_file)


class _Changes:
    """The changes that a state of an index needs to agree with a folder.

    New and changed files are parsed when this object is made, before anything is written.
    """

    def __init__(
        self,
        scan: FolderScan,
        settings: ReadSettings,
        state: Snapshot | None,  # None: there is no index yet
    ) -> None:
        self.state, self._scan = state, scan
        self._stored = StoredFiles()
        if state is not None:
            self._stored = stored_files(state, scan.source.name, scan.prints)
        contents = self._stored.contents
        self._taken = [path for path in scan.prints if path in self._stored.taken]
        free = {path: own for path, own in scan.prints.items() if path not in self._stored.taken}
        rejects = () if state is None else listed_rejects(state.path)
        self._listed = {reject.mark: reject for reject in rejects}
        new = {path: self._earlier(path) for path in free if path not in contents}
        # Files without text are not even parsed again. Others may be readable now, since a package
        # was installed, or with other options.
        self._before = {path: bad for path, bad in new.items() if bad and bad.reason == NO_TEXT}
        self._new = [path for path in new if path not in self._before]
        known = [path for path in free if path in contents]
        # The index lacks a document of the present content, or holds one of an earlier content.
        self._changed = [
            path for path in known if not _is_current(contents[path].values(), free[path])
        ]
        self._unchanged = len(known) - len(self._changed)
        # The stored file of each content: that of a new file was moved or copied.
        self._stored_as = {
            own: path
            for path, documents in contents.items()
            for own in ({*documents.values()} if self._new else ())
            if _is_current(documents.values(), own)
        }
        self._gone = [
            path for path in contents if path not in scan.prints and not scan.may_hold(path)
        ]
        self.found: set[str] = set()  # new and changed files that gave documents
        self._kept: set[str] = set()  # ids of documents that keep all values of partial updates
        self._broken: dict[str, Reject] = {}  # by the path of the file
        self.parsed: tuple[CorpusReader, Survey] | None = None
        if self._new or self._changed:
            require_memory()
            self.parsed = self._parse(settings)
        for path in [*self._broken]:
            self._set_aside(path)

    def _earlier(self, path: str) -> Reject | None:
        """Return the reject of an earlier sync for the present content of a file, if any."""
        return self._listed.get(f"{self._scan.prints[path]:016x}")

    def _set_aside(self, path: str) -> None:
        """Count a file as failed before, if it is, and the index holds no earlier content of it."""
        earlier, stored = self._earlier(path), self._stored.contents.get(path, {})
        is_new = path in self.found and not stored  # a copy of the file, with pages before a damage
        is_stale = not _prints(self._scan.prints[path]).issuperset(stored.values())
        if earlier and earlier.reason == self._broken[path].reason and not (is_new or is_stale):
            self._before[path] = self._broken.pop(path)
            self.found.discard(path)

    def _parse(self, settings: ReadSettings) -> tuple[CorpusReader, Survey]:
        source, state = self._scan.source, self.state
        start = len(source.name) + 1 if source.name else 0
        only = tuple(path[start:] for path in (*self._new, *self._changed))
        files = replace(source, only=only)
        # `stored_files` finds documents by the column `PATH` only if it has strings.
        types = {name: kind for name, kind in settings.column_types.items() if name != PATH}
        reader = CorpusReader(
            files,
            on_error="skip",
            columns=state.columns if state else None,
            metadata_fields=settings.metadata_fields,
            column_types=types,
            widens=state.widens if state else lambda name: True,
            batch_rows=COMMIT_ROWS,
        )
        survey = reader.survey(allow_empty=True)
        path_of = {file.shown: file.doc_id for file in files_of(files)}
        for batch in reader.batches():
            self.found.update(str(document.metadata[PATH]) for document in batch.documents)
            for document in batch.documents:
                self.revised(document)
            for reject in batch.rejects:
                self._broken[path_of[reject.source.rpartition(":")[0]]] = reject
        return reader, survey

    def revised(self, document: Document) -> Document:
        """Return a page with the values that partial updates gave to it before its file changed.

        It gets them if title and text are as before, as after a comment in a viewer. Columns that
        PDF files have are those of the file.
        """
        path, doc_id = str(document.metadata[PATH]), document.doc_id
        if PAGE_MARK not in doc_id or doc_id not in self._stored.updated.get(path, ()):
            return document
        assert self.state is not None
        old = self.state.fetch(self.state.lookup([doc_id]))[0].document
        if (old.title, old.text) != (document.title, document.text):
            return document
        given = {name: old.metadata[name] for name in old.metadata.keys() - PDF_COLUMNS}
        if all(
            old.metadata.get(name) == document.metadata.get(name)
            for name in PDF_COLUMNS - {"modified"}
        ):
            self._kept.add(doc_id)
        source = f"{document.source} {document.fingerprint:016x}"
        return replace(document, metadata={**document.metadata, **given}, source=source)

    def unchanged(
        self, writer: IndexWriter, keeps: KeepsPassages, documents: Sequence[Document]
    ) -> EmbeddedBatch[NDArray[np.int64]] | None:
        """Find the documents with stored vectors: unchanged ones, and those of moved files."""

        def stored(document: Document) -> Document:
            path = str(document.metadata[PATH])
            if path in self._stored.contents:
                return document
            before = self._stored_as.get(self._scan.prints[path], path)
            return replace(document, doc_id=f"{before}{document.doc_id.removeprefix(path)}")

        found = writer.unchanged([stored(document) for document in documents], keeps)
        return found and replace(found, documents=[documents[n] for n in found.payload.tolist()])

    def report(self, *, dry_run: bool) -> SyncReport:
        """Say what a sync does with each file."""
        failed = self._not_read() | {path: bad.reason for path, bad in self._broken.items()}
        textless = {*self._changed} - self.found - self._broken.keys() - self._before.keys()
        return SyncReport(
            added=tuple(path for path in self._new if path in self.found),
            replaced=tuple(path for path in self._changed if path in self.found),
            deleted=tuple(sorted([*self._gone, *textless])),
            unchanged=self._unchanged,
            failed=failed,
            kept=tuple(path for path in failed if self._holds(path)),
            failed_before={path: reject.reason for path, reject in self._before.items()},
            dry_run=dry_run,
        )

    @property
    def lost(self) -> list[str]:
        """Paths of changed and moved files whose documents have values of partial updates."""
        moved = {self._stored_as.get(self._scan.prints[path]) for path in self._new}
        replaced = self.found.intersection(self._changed) | moved.intersection(self._gone)
        updated = self._stored.updated.items()
        return sorted(path for path, ids in updated if path in replaced and ids - self._kept)

    @property
    def lists_more(self) -> bool:
        """Whether there is a file that cannot be read and that the list of failures lacks."""
        return any(self._earlier(path) is None for path in self._broken)

    def failures(self) -> list[Reject]:
        """List the files and folders that cannot be read or indexed.

        The value of a file ends in its fingerprint, by which later syncs know it.
        """
        source, prints = self._scan.source, self._scan.prints
        rejects = [Reject(_shown(source, path), why) for path, why in self._not_read().items()]
        for path, reject in {**self._broken, **self._before}.items():
            mark = f"{prints[path]:016x}"
            value = f"{reject.value.removesuffix(mark).strip()} {mark}".strip()
            rejects.append(Reject(f"{_shown(source, path)}:1", reject.reason, value))
        return rejects

    def _not_read(self) -> dict[str, str]:
        """Return, by path, why a file or folder was not parsed: unreadable, or the id is taken."""
        root, taken = self._scan.source.root or "", self._stored.taken
        reasons = {p: KNOWN if taken[p] == f"{root}/{p}" else TAKEN for p in self._taken}
        return {**self._scan.failed, **reasons}

    def _holds(self, path: str) -> bool:
        """Whether the index holds documents of a file, or of files of a folder."""
        contents = self._stored.contents
        return path in contents or any(
            path in ("", ".") or file.startswith(f"{path}/") for file in contents
        )


def _is_current(stored: Collection[int], own: int) -> bool:
    """Whether the content hashes that are stored of a file are all those of its present content.

    All documents of a content are stored if its last one is, since that is committed last.
    """
    return own in stored and _prints(own).issuperset(stored)


def _prints(own: int) -> set[int]:
    """Return the content hashes of the documents of a file with this fingerprint."""
    return {own, fingerprint_before_last(own)}


def _list_failures(folder: Path, rejects: list[Reject]) -> Path | None:
    """Write the list of files and folders that cannot be read, and return its path.

    If everything can be read, remove an earlier list, and return None. The list replaces that of
    `ingest`, which lacks files and folders that could not be opened.
    """
    log = RejectLog(folder)
    if rejects:
        log.append(rejects)
    log.finish(was_read=False)
    return log.path if rejects else None


def _shown(source: SourceFile, path: str) -> str:
    """Return how messages show a path that is relative to the root."""
    below = path[len(source.name) + 1 :] if source.name else path
    return f"{source.shown}/{printable(below)}" if below not in ("", ".") else source.shown


def _is_recorded(build: BuildCursor | None, settings: ReadSettings, root: str) -> bool:
    """Whether the index names the root and how files are read, for later syncs."""
    if build is None or build.root != root:
        return False
    return from_mapping(ReadSettings, build.settings).reading == settings.reading


def _record(writer: IndexWriter, settings: ReadSettings, root: str) -> None:
    """Commit the root and how files are read, unless the index names them."""
    build = writer.snapshot.manifest.build
    if not _is_recorded(build, settings, root):
        stored = settings.stored_values()
        build = build or BuildCursor(source_sha256="", rows=0, settings=stored, finished=True)
        kept = {**build.settings, **{each.name: stored[each.name] for each in fields(Reading)}}
        writer.commit(None, cursor=replace(build, root=root, settings=kept))


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
        if own in contents.values():  # all documents of the present content are committed
            doomed += [doc_id for doc_id, have in contents.items() if have not in _prints(own)]
    return doomed
