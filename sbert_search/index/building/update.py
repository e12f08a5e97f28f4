"""Changing the documents of an index: adding, replacing and synchronising with a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import note, warn
from sbert_search.config import names_of, require_known, unknown_name
from sbert_search.embed.arguments import CheckedOptions, ModelLike
from sbert_search.embed.delegation import LazyEmbedder
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import (
    ConfigError,
    CorpusError,
    IndexStoreError,
    ModelMismatch,
    SbertSearchError,
)
from sbert_search.index.building.build import note_resume_on_interrupt
from sbert_search.index.building.given_vectors import (
    refuse_model_options,
    split_vectors,
    vector_rule,
)
from sbert_search.index.building.ingest import (
    IngestReport,
    KeepsPassages,
    Mode,
    cuts_stay,
    ingest,
    listed,
    note_columns,
    planned,
    require_memory,
    warn_of_repeated,
)
from sbert_search.index.building.losses import Losses, warn_of_other_texts
from sbert_search.index.building.model_check import require_mixable
from sbert_search.index.building.parquet import require_recorded_models
from sbert_search.index.building.settings import (
    ReadKeywords,
    ReadSettings,
    reader_of,
    split_keywords,
)
from sbert_search.index.building.sync import (
    SyncReport,
    require_files,
    require_place,
    scan_folder,
    sync_folder,
)
from sbert_search.index.building.synced_files import ids_of_files, source_after_update
from sbert_search.index.documents import first_rows
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.ids import hash_contents
from sbert_search.index.writer import Classifier, IndexWriter
from sbert_search.records import Document, RowCounts
from sbert_search.text.documents import CorpusReader, Survey, Unread
from sbert_search.text.formats.rows import Reject, printable
from sbert_search.text.sources import named_read_errors
from sbert_search.text.spool import Sources
from sbert_search.text.vectors import RowVectors, VectorsLike

if TYPE_CHECKING:
    from sbert_search.embed.pipeline import EmbeddedBatch
    from sbert_search.index.index import Index


def update(
    index: Index,
    mode: Mode,
    sources: Sources,
    model: ModelLike | None,
    vectors: VectorsLike | None,
    settings: ReadSettings | None,
    keywords: ReadKeywords,
    *,
    partial_rows: bool = False,
    clear: Mapping[str, Collection[str]] | None = None,
    dry_run: bool = False,
    surveyed: tuple[CorpusReader, Survey] | None = None,
) -> IngestReport:
    """Add or replace documents; see `Index.add`. ``surveyed`` sources are not surveyed again."""
    started = time.perf_counter()
    require_known(keywords, ReadKeywords)
    settings, rest = split_keywords(settings or index.read_settings, keywords)
    options = cast("CheckedOptions", rest)
    given, fields = split_vectors(vectors, settings.fields)
    settings, stored = replace(settings, fields=fields), index.state.settings
    has_vectors = given is not None or fields.vector is not None
    if clear and not partial_rows:
        raise ConfigError("clear needs partial=True; whole rows leave the values out.")
    kept = index.read_settings.fields
    may_embed = has_vectors and given is None and fields.vector == kept.vector
    # Without a model, each whole row needs a vector.
    may_embed = may_embed and (index.identity.is_model or partial_rows)
    if partial_rows and has_vectors and not may_embed:
        raise ConfigError("partial: rows of an index with given vectors must be whole.")
    gone = _known(index, clear or {})
    unused = {*gone}
    found = partial(_document_of, index, gone, unused) if partial_rows else None
    if surveyed is None:
        reader = _reader_of(index, settings, sources, given, found)
        surveyed = reader, reader.survey()
    if unused:
        raise ConfigError(
            f"clear names ids that no row has: {listed(sorted(unused))}. Leave them out, or give "
            "rows with only these ids."
        )
    reader, survey = surveyed
    if index.state.n_docs:
        warn_of_other_texts(reader, kept)
    predicted = settings.predicted
    survey = predicted.survey(survey, index.state.columns)
    if fields.vector is not None:
        remedy = f"Give vectors that {index.identity.name} made, or the texts without vectors."
        require_recorded_models(reader.paths, fields.vector, index.identity, remedy)
    unread = survey.unread if mode == "upsert" and not partial_rows else ()
    if dry_run:
        return _dry_run(index, reader, survey, unread, settings, started)
    has_new = survey.columns.keys() - index.state.columns.keys()  # refused later, with near names
    if unread and settings.new_columns == "error" and not has_new:
        _planned(index.state, reader, unread, settings)
    embedder = _embedder_of(index, has_vectors, may_embed, model, settings, options)
    with note_resume_on_interrupt(index.store), index.store.writer() as writer:
        index.require_finished()
        if has_vectors and writer.snapshot.settings.digest != stored.digest:
            raise ModelMismatch(
                f"{index.path} was switched to {index.identity.name} while the vectors were read; "
                "give vectors of this model."
            )
        new, changed = note_columns(writer.snapshot, survey, settings.new_columns)
        writer.add_columns(survey.columns)
        losses = Losses(writer.snapshot, unread)
        report = ingest(
            writer,
            reader,
            embedder,
            survey=survey,
            mode=mode,
            on_truncate=settings.on_truncate,
            chunking=settings.chunking(None),
            finish=partial(settle, writer),
            by_time=True,
            predicted=predicted,
            find_unchanged=partial(
                _unchanged,
                index,
                writer,
                # The text of a partial row stays as it was cut, or with its given vector.
                keeps=(lambda _: True)
                if partial_rows
                else cuts_stay(settings, index.read_settings),
            ),
            note_replacing=losses.add,
        )
    losses.warn()
    _warn_of_numbered(report.counts, reader)
    return replace(report, new_columns=new, changed_columns=changed, lost=losses.messages)


def _unchanged(
    index: Index, writer: IndexWriter, documents: Sequence[Document], keeps: KeepsPassages
) -> EmbeddedBatch[NDArray[np.int64]] | None:
    """Find the documents that keep their vectors; the others need a model."""
    found = writer.unchanged(documents, keeps)
    kept = set() if found is None else set(found.payload.tolist())
    new = next((one for at, one in enumerate(documents) if at not in kept), None)
    if new is not None and not index.identity.is_model:
        reason = "the text or title is new, but the index has no model that could embed it"
        remedy = "Give vectors with the documents, or build the index with their model."
        raise Reject(new.source, reason, new.doc_id).error(remedy)
    return found


def _warn_of_numbered(counts: RowCounts, reader: CorpusReader) -> None:
    if counts.replaced and (shown := reader.numbered):
        warn(
            f"The rows of {shown} have no id, so each replaces the document with its number. If "
            "rows were inserted or deleted, these are other documents. Build the index again, and "
            "name a field of ids with --id-field."
        )


def _dry_run(
    index: Index,
    reader: CorpusReader,
    survey: Survey,
    unread: Sequence[Unread],
    settings: ReadSettings,
    started: float,
) -> IngestReport:
    """Report what an upsert would do; ``unread`` are the parts that no row of it has."""
    new, changed = note_columns(index.state, survey, settings.new_columns)
    counts, repeated, losses = _planned(index.state, reader, unread, settings)
    warn_of_repeated(repeated)
    losses.warn()
    _warn_of_numbered(counts, reader)
    return IngestReport(
        counts=counts,
        seconds=time.perf_counter() - started,
        dry_run=True,
        new_columns=new,
        changed_columns=changed,
        lost=losses.messages,
    )


def _planned(
    state: Snapshot, reader: CorpusReader, unread: Sequence[Unread], settings: ReadSettings
) -> tuple[RowCounts, list[str], Losses]:
    """Return the outcomes of an upsert, the ids of several of its rows, and what would be lost.

    If the setting ``new_columns`` says so, losses are refused.
    """
    losses = Losses(state, unread)
    classifier, predicted = Classifier(lambda: state), settings.predicted
    counts, repeated = planned(reader, classifier, predicted, losses.add)
    if losses.messages and settings.new_columns == "error":
        refused = "Such rows are refused, since new_columns is error."
        raise CorpusError(" ".join([*losses.messages, refused]))
    return counts, repeated, losses


def _reader_of(
    index: Index,
    settings: ReadSettings,
    sources: Sources,
    vectors: RowVectors | None = None,
    changed: Callable[[str], Document | None] | None = None,
) -> CorpusReader:
    require_memory()
    stored, kept = index.state.settings, index.read_settings.fields
    return reader_of(
        settings,
        sources,
        columns=index.state.columns,
        widens=index.state.widens,
        vectors=vectors,
        vector_rule=vector_rule(stored.metric, stored.dtype, stored.dim),
        root=index.root,
        stored=kept if index.identity.is_model or changed else replace(kept, vector=None),
        partial=changed,
    )


def _known(index: Index, clear: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """Return the columns that documents lose; raise `ConfigError` if the index has no such one."""
    gone = {doc_id: names_of(columns) for doc_id, columns in clear.items()}
    for name in {*chain(*gone.values())} - index.state.columns.keys():
        raise ConfigError(unknown_name(name, name, index.state.columns, "column"))
    return gone


def _document_of(
    index: Index, gone: Mapping[str, Collection[str]], unused: set[str], doc_id: str
) -> Document | None:
    """Read a document, with its later source, and with None for values that are ``gone``.

    Its id is removed from ``unused``.
    """
    unused.discard(doc_id)
    rows, contents = index.state.find([doc_id])
    if rows[0] < 0:
        return None
    document = index.state.fetch(rows)[0].document
    lost = dict.fromkeys(document.metadata.keys() & gone.get(doc_id, ()))
    source = source_after_update(document, int(contents[0]))
    return replace(document, metadata={**document.metadata, **lost}, source=source)


def sync_table(
    index: Index,
    path: Path,
    model: ModelLike | None,
    settings: ReadSettings | None,
    keywords: ReadKeywords,
    *,
    dry_run: bool,
    allow_empty: bool,
) -> SyncReport:
    """Make the documents of an index equal to the rows of a file; see `Index.sync`."""
    require_known(keywords, ReadKeywords)
    started, stamp = time.perf_counter(), _stamp(path)
    read, _ = split_keywords(settings or index.read_settings, keywords)
    read = replace(read, on_error="stop")  # the document of a bad row must not be deleted
    index.require_finished()
    index.refresh()
    reader = _reader_of(index, read, [path])
    survey = reader.survey(allow_empty=True)
    contents, repeated = _contents_of(reader, read)
    state, of_files = index.state, ids_of_files(index.state)
    if taken := [doc_id for doc_id in contents if doc_id in of_files]:
        raise IndexStoreError(
            f"{path}: files of a folder in {index.path} have the ids of rows: {listed(taken)}. "
            "Give the rows other ids, or build another index from the table."
        )
    gone = _gone(state, contents)
    if not contents and not allow_empty:
        raise CorpusError(
            f"{path}: holds no rows, so a sync would delete all documents. If that is meant, pass "
            "--allow-empty."
        )
    n_rows = state.n_docs - len(of_files)
    if 2 * len(gone) > n_rows and not allow_empty:
        cause = "Is it complete? Another table needs another index."
        if reader.numbered:
            cause = (
                "Its rows have no id field, so their ids are made of the file's name and a number. "
                "Keep the name, or build the index again with a field of ids (--id-field)."
            )
        raise CorpusError(
            f"{path}: a sync would delete {len(gone):,} of {n_rows:,} documents of rows, which the "
            f"file lacks. {cause} To delete them, pass --allow-empty."
        )
    added, replaced = _differing(state, contents)
    report = SyncReport(
        added=tuple(added),
        replaced=tuple(replaced),
        deleted=tuple(gone),
        unchanged=len(contents) - len(added) - len(replaced),
        dry_run=dry_run,
    )
    if report.added or report.replaced:
        known = reader, survey
        update(index, "upsert", [], model, None, read, keywords, dry_run=dry_run, surveyed=known)
    else:  # an upsert warns of them, too
        warn_of_repeated(repeated)
    if not dry_run:
        if _stamp(path) != stamp:
            raise CorpusError(f"{path}: changed while it was read; sync again.")
        index.delete(_gone(index.state, contents))
    return replace(report, documents=len(index), seconds=time.perf_counter() - started)


def _contents_of(reader: CorpusReader, read: ReadSettings) -> tuple[dict[str, int], list[str]]:
    """Return the content hash of the last row of each id, and the ids with several contents."""
    contents, repeated = dict[str, int](), dict[str, None]()
    for batch in read.predicted.batches(reader.batches()):
        hashes = hash_contents(batch.documents, batch.vectors).tolist()
        for document, content in zip(batch.documents, hashes, strict=True):
            if contents.get(document.doc_id, content) != content:
                repeated[document.doc_id] = None
            contents[document.doc_id] = content
    return contents, list(repeated)


def _differing(state: Snapshot, contents: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return the ids that an index lacks, and those that it has with other contents."""
    rows, stored = state.find(list(contents))
    differs = stored != np.array(list(contents.values()), np.uint64)
    known = rows >= 0
    return [*compress(contents, ~known)], [*compress(contents, known & differs)]


def _gone(state: Snapshot, contents: Mapping[str, int]) -> list[str]:
    """Return the ids of the documents that a table lacks, without those of files."""
    kept = contents.keys() | ids_of_files(state)
    return [doc_id for doc_id in state.doc_ids(first_rows(state)) if doc_id not in kept]


def _stamp(path: Path) -> tuple[int, int]:
    with named_read_errors(printable(path)):
        status = path.stat()
    return status.st_size, status.st_mtime_ns


def sync(
    index: Index,
    folder: Path,
    model: ModelLike | None,
    settings: ReadSettings | None,
    keywords: ReadKeywords,
    *,
    dry_run: bool,
    allow_empty: bool,
    moved: bool,
) -> SyncReport:
    """Make the documents of a folder equal to its files; see `Index.sync`."""
    require_known(keywords, ReadKeywords)
    if names := sorted(keywords.keys() & {"fields", "on_error", "query", "text_as"}):
        raise ConfigError(
            f"{', '.join(names)}: a sync reads each file of a folder as one document and "
            "reports files that cannot be read; leave these options out."
        )
    settings, rest = split_keywords(settings or index.read_settings, keywords)
    options = cast("CheckedOptions", rest)
    index.require_finished()
    started = time.perf_counter()
    scan = scan_folder(require_place(folder, None if moved else index.root, settings))
    require_files(scan, allow_empty=allow_empty)
    if index.root is None and (n_docs := len(index)):
        note(
            f"{scan.source.shown} becomes the folder of {index.path}: paths in it are the ids of "
            f"its files, and later syncs take it or a folder below it. {n_docs:,} documents of "
            "other sources stay."
        )
    report = sync_folder(
        index.store,
        scan,
        settings,
        partial(_open_model, index, model, settings, options),
        dry_run=dry_run,
        allow_inexact=options.get("allow_inexact", False),
        settle=settle,
    )
    return replace(report, seconds=time.perf_counter() - started)


def settle(writer: IndexWriter) -> None:
    """Merge segments after an update; if that fails, warn, since the update is committed."""
    try:
        writer.settle()
    except SbertSearchError as error:
        warn(
            f"The update is committed, but merging segments after it failed: {error} "
            f"Remove the cause, then run `sbert-search index compact {writer.path}`."
        )


def _embedder_of(
    index: Index,
    has_vectors: bool,
    may_embed: bool,
    model: ModelLike | None,
    settings: ReadSettings,
    options: CheckedOptions,
) -> TextEmbedder | None:
    """Return the embedder of new documents; None if it may not embed, as vectors are given.

    The embedder opens the model, and compares the model with the index, when the first text is
    embedded. If vectors are given, ``model`` is opened and compared at once.
    """
    embedder = LazyEmbedder(partial(_open_model, index, model, settings, options))
    if not has_vectors:
        return embedder
    index.require_finished()
    if model is not None:
        index.matching_embedder(model, **options)
    elif not may_embed:
        refuse_model_options(options)
    return embedder if may_embed else None


def _open_model(
    index: Index, model: ModelLike | None, settings: ReadSettings, options: CheckedOptions
) -> TextEmbedder:
    embedder = index.kept_embedder(model, **options)
    require_mixable(index.state.settings, embedder)
    settings.chunking(embedder)
    return embedder
