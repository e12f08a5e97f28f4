"""Building an index of ids and vectors without texts, from columns, a million rows at a time.

Rows are checked and written in blocks, and no `Document` is made for a row, which would be slow.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.base.arrays import MAX_NORM
from sbert_search.base.progress import progress
from sbert_search.config import require_known
from sbert_search.embed.arguments import EmbedderOptions, ModelLike
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.index.building.build import (
    BuildKeywords,
    BuildSettings,
    build_from,
    model_opener,
)
from sbert_search.index.building.given_vectors import refuse_model_options, vector_rule
from sbert_search.index.building.ingest import IngestReport
from sbert_search.index.building.settings import split_keywords
from sbert_search.index.norms import divide_by_norms, norms_of, stored_units
from sbert_search.index.storage import ids as ids_of
from sbert_search.index.storage.columns import textless_table
from sbert_search.index.storage.manifest import BuildCursor, VectorSettings
from sbert_search.index.storage.segment_writer import SegmentPart
from sbert_search.index.upkeep.merge_policy import SEGMENT_ROWS
from sbert_search.index.writer import IndexWriter
from sbert_search.records import Document, RowCounts
from sbert_search.text.documents import Reject, Survey
from sbert_search.text.formats.rows import BLOCK_ROWS, BadRow, RejectLog, excerpt
from sbert_search.text.ids import IdsLike, id_column, numbered_ids
from sbert_search.text.vectors import RowVectors, VectorRule, VectorsLike, vector_problems

SHOWN = "vectors"  # the first row has ``vectors:1`` as its `Document.source`
_NEW, _DUPLICATE, _REJECTED = 0, 1, 2
_CONFLICT = "the id is already indexed with other content, which only upsert replaces"


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Rows that become one segment of an index."""

    source: IdVectors
    start: int
    stop: int  # row after the last one

    @property
    def counts(self) -> RowCounts:
        """Number of rows by outcome."""
        new, duplicate, rejected = np.bincount(self._outcomes, minlength=3).tolist()
        return RowCounts(indexed=new, duplicate=duplicate, rejected=rejected)

    @property
    def rejects(self) -> list[Reject]:
        """The rejected rows."""
        rows = self.start + np.flatnonzero(self._outcomes == _REJECTED)
        return [self.source.reject(row) for row in rows.tolist()]

    @property
    def id_hashes(self) -> NDArray[np.uint64]:
        """The hash of the id of each new document, (n_docs,)."""
        return self.source.id_hashes[self._new_rows]

    @property
    def contents(self) -> NDArray[np.uint64]:
        """The hash of the content of each new document, (n_docs,)."""
        return self.source.contents[self._new_rows]

    def parts(self, first_row: int, settings: VectorSettings) -> Iterator[SegmentPart]:
        """Yield the new documents, with their vectors as they are stored."""
        for start in range(self.start, self.stop, BLOCK_ROWS):
            part = self.source.part(start, min(start + BLOCK_ROWS, self.stop), first_row, settings)
            if len(part.vectors):
                yield part
            first_row += len(part.vectors)

    @property
    def _new_rows(self) -> NDArray[np.int64]:
        return self.start + np.flatnonzero(self._outcomes == _NEW)

    @property
    def _outcomes(self) -> NDArray[np.uint8]:
        return self.source.outcomes[self.start : self.stop]


class IdVectors:
    """Vectors and the id of each; `survey` checks all rows and must run first.

    Ids are checked by the same rules as those of any other source, and vectors by
    `vector_problems`. A row with the id of an earlier row is a duplicate if the vectors are equal;
    otherwise it is rejected.
    If ``ids`` is None, the id is the number of the vector, from 0.

    Besides ids and vectors, 17 bytes of memory are held for each row, and about as much again
    during `survey`.
    """

    def __init__(
        self,
        vectors: RowVectors,
        ids: IdsLike | None,
        *,
        rule: VectorRule,
        on_error: Literal["stop", "skip"],
    ) -> None:
        self.vectors, self.rule, self.on_error = vectors, rule, on_error
        self._ids: pa.Array | None = None
        bad_ids: dict[int, BadRow] = {}
        if ids is not None:
            self._ids, bad_ids = id_column(ids)
        self._reasons = {row: (bad.reason, bad.value) for row, bad in bad_ids.items()}
        if self._ids is not None and len(self._ids) != len(vectors):
            raise CorpusError(
                f"{len(vectors):,} vectors for {len(self._ids):,} ids. Pass one id for each vector."
            )
        n_rows = len(vectors)
        self.contents, self.id_hashes = np.empty(n_rows, np.uint64), np.empty(n_rows, np.uint64)
        self.outcomes = np.zeros(n_rows, np.uint8)

    def survey(self) -> Survey:
        """Check all rows, and find ids that occur more than once."""
        if not len(self.vectors):
            raise CorpusError(f"{self.vectors.shown}: holds no vectors.")
        digest = hashlib.sha256()
        with progress("Checking", len(self.vectors), "rows") as advance:
            for start in range(0, len(self.vectors), BLOCK_ROWS):
                ids = self._ids_between(start, start + BLOCK_ROWS)
                self._check(start, ids)
                digest.update("".join(f"{doc_id}\0" for doc_id in ids).encode())
                advance(len(ids))
        digest.update(self.contents.data)
        self._reject(self._reasons)
        self._resolve_repeated_ids()
        rejected = int(np.count_nonzero(self.outcomes == _REJECTED))
        return Survey(len(self.vectors), rejected, digest.hexdigest(), {}, self.vectors.dim)

    def windows(self, skip_rows: int, n_docs: int) -> Iterator[RowWindow]:
        """Cut the rows after ``skip_rows`` into windows of at most ``n_docs`` new documents."""
        new = np.flatnonzero(self.outcomes[skip_rows:] == _NEW) + skip_rows
        start = skip_rows
        for next_first in new[n_docs::n_docs].tolist():
            yield RowWindow(self, start, next_first)
            start = next_first
        if start < len(self.vectors):
            yield RowWindow(self, start, len(self.vectors))

    def reject(self, row: int) -> Reject:
        """Describe a rejected row."""
        reason, value = self._reasons[row]
        return Reject(self._place(row), reason, value)

    def part(self, start: int, stop: int, first_row: int, settings: VectorSettings) -> SegmentPart:
        """Return the new documents from row ``start`` to ``stop``, with vectors as stored."""
        keep = self.outcomes[start:stop] == _NEW
        vectors, ids = self.vectors.block(start, stop), self._id_texts(start, stop)
        sources = numbered_ids(f"{SHOWN}:", start + 1, stop + 1)
        if not keep.all():
            vectors = vectors[keep]
            ids, sources = ids.filter(pa.array(keep)), sources.filter(pa.array(keep))
        norms = fast_norms(vectors)
        if settings.metric == "cosine":
            units = _units(vectors, norms)
            vectors, norms = stored_units(vectors, units, norms, settings.dtype), fast_norms(units)
        table = textless_table(ids, sources, first_row)
        vectors = vectors.astype(settings.dtype, copy=False)
        return SegmentPart(table, vectors, float(norms.max(initial=0)))

    def _check(self, start: int, ids: list[str]) -> None:
        block = self.vectors.block(start, start + BLOCK_ROWS)
        rows = slice(start, start + len(block))
        norms = fast_norms(block)
        self.contents[rows] = _NO_TEXT ^ ids_of.hash_vectors(block)
        self.id_hashes[rows] = ids_of.hash_ids(ids)
        # To save time, only vectors whose norm is 0, too large or not finite are looked at again.
        suspect = ~((norms > 0) & (norms <= MAX_NORM))
        if self.rule.dtype == "float16" and not self.rule.nonzero:
            suspect[:] = True  # a vector with a small norm may overflow float16, too
        at = np.flatnonzero(suspect)
        for row, problem in zip(at.tolist(), vector_problems(block[at], self.rule), strict=True):
            if problem:
                self._reasons.setdefault(start + row, (problem, f"id {excerpt(ids[row])}"))

    def _resolve_repeated_ids(self) -> None:
        """Keep the first row of each id, and mark or refuse later rows of the id."""
        order = np.argsort(self.id_hashes, kind="stable")
        hashes = self.id_hashes[order]
        same = hashes[1:] == hashes[:-1]
        repeated = np.zeros(len(order), bool)
        repeated[1:] |= same
        repeated[:-1] |= same
        first: dict[str, int] = {}
        conflicts: dict[int, tuple[str, str]] = {}
        for row in np.sort(order[repeated]).tolist():
            (doc_id,) = self._ids_between(row, row + 1)
            if self.outcomes[row] == _REJECTED or first.setdefault(doc_id, row) == row:
                continue
            if self.contents[row] == self.contents[first[doc_id]]:
                self.outcomes[row] = _DUPLICATE
            elif self.on_error == "skip":
                conflicts[row] = _CONFLICT, doc_id
            else:
                where = self._place(first[doc_id])
                reason = f"the id also occurs in {where}, with other content"
                raise Reject(self._place(row), reason, doc_id).error(
                    "Make ids unique, or pass --on-error skip to keep the first of them."
                )
        self._reasons |= conflicts
        self._reject(conflicts)

    def _place(self, row: int) -> str:
        """Name a row in messages: by its number from 1; without given ids by its id, from 0."""
        number = f"vector {row}" if self._ids is None else str(row + 1)
        return f"{self.vectors.shown}:{number}"

    def _reject(self, rows: Iterable[int]) -> None:
        """Mark rows as rejected, or raise the error of the first one."""
        rejected = sorted(rows)
        if rejected and self.on_error == "stop":
            raise self.reject(rejected[0]).error("Fix it, or pass --on-error skip.")
        self.outcomes[rejected] = _REJECTED

    def _ids_between(self, start: int, stop: int) -> list[str]:
        return list(self._id_texts(start, stop).to_pylist())

    def _id_texts(self, start: int, stop: int) -> pa.Array:
        if self._ids is None:
            return numbered_ids("", start, min(stop, len(self.vectors)))
        return self._ids.slice(start, stop - start)


def fast_norms(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the norms (n,) of vectors (n, dim), in float32 where no square leaves its range."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("nd,nd->n", vectors, vectors)
        norms: NDArray[np.float64] = np.sqrt(squares).astype(np.float64)
        unsure = ~((squares > _SMALL) & (squares < _LARGE))
        if unsure.any():
            norms[unsure] = norms_of(vectors[unsure])
    return norms


def _units(vectors: NDArray[np.float32], norms: NDArray[np.float64]) -> NDArray[np.float32]:
    if len(norms) and not (norms.min() ** 2 > _SMALL and norms.max() ** 2 < _LARGE):
        return divide_by_norms(vectors, norms)
    return vectors / norms.astype(np.float32)[:, None]


_SMALL, _LARGE = 1e-20, 1e30  # squares of norms between which float32 is used
_NO_TEXT = np.uint64(ids_of.hash_content(Document("", "")))  # content hash of an empty document


def build_from_vectors(
    vectors: VectorsLike,
    ids: IdsLike | None,
    out: Path,
    model: ModelLike | None,
    keywords: BuildKeywords,
) -> IngestReport:
    """Build an index of vectors and their ids, or resume a build; see `Index.from_vectors`.

    Each commit writes one segment of the largest size, so that no merge rewrites these rows. An
    interrupted build loses at most the segment that it was writing.
    """
    require_known(keywords, BuildKeywords)
    settings, options = split_keywords(BuildSettings(), keywords)
    open_model = None
    if model is None:
        refuse_model_options(options)
    else:
        open_model = model_opener(model, out, cast("EmbedderOptions", options))
    if settings.classify or settings.tag:
        raise ConfigError("classify and tag need texts to predict from; use Index.build.")
    out = out.absolute()
    rule = vector_rule(settings.metric, settings.dtype)
    opened = RowVectors.open(Path(vectors) if isinstance(vectors, str) else vectors)
    source = IdVectors(opened, ids, rule=rule, on_error=settings.on_error)
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
        seconds=seconds,
        rejects_file=rejects.path if cursor.counts.rejected else None,
    )
