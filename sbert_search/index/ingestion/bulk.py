"""Building an index of ids and vectors without texts, a segment of a million rows at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sbert_search.base.progress import progress
from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.errors import ConfigError
from sbert_search.index.ingestion.build import BuildSettings, build_from, refuse_finished
from sbert_search.index.ingestion.given_vectors import vector_rule
from sbert_search.index.ingestion.id_vectors import IdVectors
from sbert_search.index.ingestion.ingest import IngestReport
from sbert_search.index.maintenance.merge_policy import SEGMENT_ROWS
from sbert_search.index.storage.manifest import BuildCursor
from sbert_search.index.writer import IndexWriter
from sbert_search.text.formats.rows import RejectLog
from sbert_search.text.ids import IdsLike
from sbert_search.text.vectors import RowVectors


def build_from_vectors(
    vectors: RowVectors,
    ids: IdsLike | None,
    out: Path,
    open_model: Callable[[], TextEmbedder] | None,
    settings: BuildSettings,
) -> IngestReport:
    """Build an index of vectors and their ids, or resume an interrupted build.

    Each commit writes one segment of the largest size, so that no merge rewrites these rows. An
    interrupted build loses at most the segment that it was writing.

    Args:
        vectors: The vectors.
        ids: The id of each vector; None: the number of the vector, from 0.
        out: Folder of the index; absent, empty, or an unfinished build.
        open_model: Loads the model that made the vectors; None: the index has no model.
        settings: How to build the index.

    Raises:
        ConfigError: ``settings`` has predicted columns, or as for `build_index`.
        CorpusError, IndexStoreError, ModelMismatch: As for `build_index`.
    """
    if settings.classify or settings.tag:
        raise ConfigError("classify and tag need texts to predict from; use Index.build.")
    out = out.absolute()
    refuse_finished(out)
    rule = vector_rule(settings.metric, settings.dtype)
    source = IdVectors(vectors, ids, rule=rule, on_error=settings.on_error)
    survey = source.survey()

    def write(
        writer: IndexWriter, embedder: TextEmbedder | None, cursor: BuildCursor
    ) -> IngestReport:
        return _write(writer, source, cursor)

    return build_from(survey, out, open_model, settings, write)


def _write(writer: IndexWriter, source: IdVectors, start: BuildCursor) -> IngestReport:
    started, cursor, passages = time.perf_counter(), start, 0
    rejects = RejectLog(writer.path, keep=start.counts.rejected)
    with progress("Indexing", len(source.vectors) - start.rows, "rows") as advance:
        for window in source.windows(start.rows, SEGMENT_ROWS):
            counts = window.counts
            cursor = replace(cursor, rows=window.stop, counts=cursor.counts + counts)
            rejects.append(window.rejects)
            writer.commit_blank(window, cursor=cursor)
            passages += counts.indexed
            advance(counts.read)
    seconds = time.perf_counter() - started
    rejects.finish(was_read=False)  # before `finish_build`: a finished build cannot be repeated
    writer.finish_build()
    return IngestReport(
        counts=cursor.counts,
        resumed_rows=start.rows,
        passages=passages,
        truncated=0,
        lost_tokens=0,
        seconds=seconds,
        rejects_file=rejects.path if cursor.counts.rejected else None,
    )
