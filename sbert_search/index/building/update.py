"""Changing the documents of an index: adding, replacing and synchronising with a folder."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sbert_search.base.progress import warn
from sbert_search.config import require_known
from sbert_search.embed.arguments import CheckedOptions, ModelLike
from sbert_search.embed.delegation import LazyEmbedder
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, ModelMismatch, SbertSearchError
from sbert_search.index.building.build import note_resume_on_interrupt
from sbert_search.index.building.given_vectors import (
    refuse_model_options,
    split_vectors,
    vector_rule,
)
from sbert_search.index.building.ingest import (
    IngestReport,
    Mode,
    cuts_stay,
    ingest,
    note_columns,
    require_memory,
)
from sbert_search.index.building.model_check import require_mixable, require_model
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
from sbert_search.index.writer import IndexWriter
from sbert_search.text.spool import Sources
from sbert_search.text.vectors import VectorsLike

if TYPE_CHECKING:
    from sbert_search.index.index import Index


def update(
    index: Index,
    mode: Mode,
    sources: Sources,
    model: ModelLike | None,
    vectors: VectorsLike | None,
    settings: ReadSettings | None,
    keywords: ReadKeywords,
) -> IngestReport:
    """Add or replace documents; see `Index.add`."""
    require_known(keywords, ReadKeywords)
    settings, rest = split_keywords(settings or index.read_settings, keywords)
    options = cast("CheckedOptions", rest)
    given, fields = split_vectors(vectors, settings.fields)
    settings, stored = replace(settings, fields=fields), index.state.settings
    has_vectors = given is not None or fields.vector is not None
    if not has_vectors:
        require_model(index.identity, index.path)
    kept = index.read_settings.fields
    may_embed = has_vectors and given is None and fields.vector == kept.vector
    if may_embed and not index.identity.is_model:
        kept, may_embed = replace(kept, vector=None), False  # each row needs a vector
    require_memory()
    reader = reader_of(
        settings,
        sources,
        columns=index.state.columns,
        widens=index.state.widens,
        vectors=given,
        vector_rule=vector_rule(stored.metric, stored.dtype, stored.dim),
        root=index.root,
        stored=kept,
    )
    predicted = settings.predicted
    survey = predicted.survey(reader.survey(), index.state.columns)
    if fields.vector is not None:
        remedy = f"Give vectors that {index.identity.name} made, or the texts without vectors."
        require_recorded_models(reader.paths, fields.vector, index.identity, remedy)
    embedder = _embedder_of(index, has_vectors, may_embed, model, settings, options)
    with note_resume_on_interrupt(index.store), index.store.writer() as writer:
        index.require_finished()
        if has_vectors and writer.snapshot.settings.digest != stored.digest:
            raise ModelMismatch(
                f"{index.path} was switched to {index.identity.name} while the vectors were read; "
                "give vectors of this model."
            )
        note_columns(writer.snapshot, survey.columns)
        writer.add_columns(survey.columns)
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
                writer.unchanged, keeps=cuts_stay(settings, index.read_settings)
            ),
        )
    if report.counts.replaced and (shown := reader.numbered):
        warn(
            f"The rows of {shown} have no id, so each replaced the document with its number. If "
            "rows were inserted or deleted, these are other documents. Build the index again, and "
            "name a field of ids with --id-field."
        )
    return report


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
