"""One immutable state of an index, for reading: search, fetch, look up, filter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import CorruptIndex, NoLexicalData, QueryError
from sbert_search.index.dense.exact import QUERY_BLOCK, TopK
from sbert_search.index.dense.query_plan import RowMask, Selection
from sbert_search.index.dense.segment_search import offer_nearest
from sbert_search.index.dense.single_query import SingleQuerySearch
from sbert_search.index.derived_files import DerivedFiles
from sbert_search.index.lexical.bm25 import LexicalPart, LexicalSearch
from sbert_search.index.lexical.postings import Postings
from sbert_search.index.norms import divide_by_norms, norms_of
from sbert_search.index.storage import ids, npy
from sbert_search.index.storage.manifest import ColumnType, Manifest, StoreSettings
from sbert_search.index.storage.passages import StoredPassage, read_documents, read_passages
from sbert_search.index.storage.segments import Segment, open_checked
from sbert_search.records import Document
from sbert_search.runtime.disk.folders import Folder

Live = NDArray[np.bool_] | None

MASKS_KEPT = 4  # of filters, a byte a row each
MAX_RESULTS_HELD = 1 << 22  # results of one block of queries; a large k makes the block smaller


class Snapshot:
    """A state of an index: what one commit left. It never changes, whatever writers do.

    Raises:
        FileNotFoundError: A file is gone, as after a compaction by another process.
        CorruptIndex: A file differs from what the manifest says.
    """

    def __init__(self, folder: Folder, manifest: Manifest, reuse: Snapshot | None = None) -> None:
        self.folder, self.manifest = folder, manifest
        known = {part.record.docs: part for part in reuse.segments} if reuse else {}
        with folder.kept_open() as opened:
            self.segments: list[Segment] = [
                known.get(record.docs) or Segment(opened, record, manifest.settings)
                for record in manifest.segments
            ]
            self._derived: DerivedFiles = DerivedFiles(
                opened, manifest, reuse._derived if reuse else None
            )
            dead = self._read_tombstones(opened)
        self.anns = self._derived.anns
        self._starts = np.array([record.row_start for record in manifest.segments], np.int64)
        self._masks: dict[str, RowMask] = {}
        self._live = self._mark_live(dead)
        self._selections = [None if live is None else Selection(live) for live in self._live]

    @property
    def path(self) -> Path:
        """Where the folder was when it was opened."""
        return self.folder.path

    @property
    def n_docs(self) -> int:
        """Documents that a search can find."""
        return self.manifest.n_docs

    @property
    def n_rows(self) -> int:
        """Rows that a search can find."""
        return self.manifest.n_rows

    @property
    def settings(self) -> StoreSettings:
        """What was fixed when the index was created."""
        return self.manifest.settings

    @property
    def columns(self) -> Mapping[str, ColumnType]:
        """Metadata columns and their types."""
        return self.manifest.columns

    def widens(self, name: str) -> bool:
        """Whether float64 would hold all integers of a metadata column exactly."""
        return not any(segment.rounded_as_float(name) for segment in self.segments)

    def search(
        self,
        queries: NDArray[np.float32],
        k: int,
        mask: RowMask | None = None,
        *,
        exact: bool = False,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the best rows of each query.

        Args:
            queries: float32 (n_queries, dim), finite.
            k: Rows wanted; more than there are gives all there are.
            mask: What `filter_mask` of this snapshot returned.
            exact: Scan all vectors, whatever FAISS files there are.

        Returns:
            Scores float32 (n_queries, k), best first and the lower row first among equals, and
            rows int64 (n_queries, k). Where there are fewer than k: -inf and -1.

        Raises:
            QueryError: k below 1, queries of another length, or numbers that are not finite.
        """
        queries = self._checked(queries, k)
        if len(queries) == 1 and mask is None and not exact and self._single_query:
            found_alone = self._single_query.nearest(queries, k)
            if found_alone is not None:
                return found_alone
        wanted = mask.selections if mask else self._selections
        anns = [None] * len(self.segments) if exact else self.anns
        best = TopK.empty(len(queries), k)
        step = max(1, min(QUERY_BLOCK, MAX_RESULTS_HELD // k))
        for i in range(0, len(queries), step):
            asked = slice(i, i + step)
            top = best.take(asked)
            for segment, found, part in zip(self.segments, anns, wanted, strict=True):
                offer_nearest(top, queries[asked], segment, found, part, self.settings)
        return best.scores, best.rows

    @cached_property
    def _single_query(self) -> SingleQuerySearch | None:
        """The short way of a lone query, where one FAISS file holds all rows and all are live."""
        if len(self.segments) != 1 or self._selections[0] is not None:
            return None
        return SingleQuerySearch.of(self.segments[0], self.anns[0], self.settings)

    def fetch(self, rows: Sequence[int] | NDArray[np.int64]) -> list[StoredPassage]:
        """Read passages with their documents, in the order asked.

        Raises:
            ValueError: A row that the index does not hold.
            CorruptIndex: A passage that cannot be read.
        """
        asked = np.asarray(rows, np.int64)
        found: dict[int, StoredPassage] = {}
        for segment, _, at in self._located(asked):
            found.update((passage.row, passage) for passage in read_passages(segment, at))
        if (asked < 0).any():
            raise ValueError(f"{self.path} holds no row {asked.min()}.")
        return [found[row] for row in asked.tolist()]

    def doc_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of the first passage of each row's document; -1 stays -1.

        Args:
            rows: int64, any shape.

        Raises:
            ValueError: A row that the index does not hold.
        """
        docs = np.full(rows.shape, -1, np.int64)
        for segment, here, at in self._located(rows):
            docs[here] = rows[here] - segment.chunks[at]
        return docs

    def doc_ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Read the ids of the documents that rows belong to, in the order asked.

        Args:
            rows: int64 (n,), none negative.

        Raises:
            ValueError: A row that the index does not hold.
            CorruptIndex: An id that cannot be read.
        """
        found = np.empty(len(rows), object)
        for segment, here, at in self._located(rows):
            found[here] = segment.doc_ids(at)
        return list(found)

    def bytes_of(self, rows: NDArray[np.int64]) -> int:
        """Return what some rows take as they are stored, about, vectors aside.

        Raises:
            ValueError: A row that the index does not hold.
        """
        return sum(segment.bytes_at(at) for segment, _, at in self._located(rows))

    def lookup(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Find live documents by id: rows of their first passages, -1 if absent, (n,)."""
        return self.find(doc_ids)[0]

    def find(self, doc_ids: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Find live documents by id.

        Returns:
            Rows of their first passages, int64 (n,), -1 if absent, and content hashes, (n,).
        """
        rows = np.full(len(doc_ids), -1, np.int64)
        contents = np.zeros(len(doc_ids), np.uint64)
        hashes = ids.hash_ids(doc_ids)
        for segment, live in zip(self.segments, self._live, strict=True):
            asked, column = ids.candidates(segment.ids, hashes)
            if len(asked) == 0:
                continue
            at = segment.firsts_of(column)
            names = segment.doc_ids(at)
            same = np.array([names[i] == doc_ids[n] for i, n in enumerate(asked)], bool)
            same &= True if live is None else live[at]
            rows[asked[same]] = segment.rows[at[same]]
            contents[asked[same]] = segment.ids[2, column[same]]
        return rows, contents

    def rows_of(self, docs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all rows of some documents, given the rows of their first passages, rising."""
        parts = [np.empty(0, np.int64)]
        for segment, _, at in self._located(docs):
            next_doc = np.searchsorted(segment.firsts, at, "right")
            parts += [
                segment.rows[start : segment.firsts[n] if n < len(segment.firsts) else None]
                for start, n in zip(at.tolist(), next_doc.tolist(), strict=True)
            ]
        return np.sort(np.concatenate(parts))

    def filter_mask(self, where: str) -> RowMask:
        """Find the live rows whose documents match an SQL condition over their metadata.

        The masks of the last few conditions are kept: the next query often has the same.

        Raises:
            QueryError: A condition that cannot be used; the message points into it.
        """
        mask = self._masks.pop(where, None) or self._find_matching(where)
        self._masks[where] = mask  # the newest one last
        for oldest in list(self._masks)[:-MASKS_KEPT]:
            self._masks.pop(oldest, None)
        return mask

    def _find_matching(self, where: str) -> RowMask:
        from sbert_search.index.filters import conditions  # loads sqlglot

        condition = conditions.parse(where, self.columns)
        parts, n_docs = [], 0
        for segment, live in zip(self.segments, self._live, strict=True):
            matching = condition.matching(segment)  # first passages
            if live is not None:
                matching &= live
            n_docs += int(matching.sum())
            if segment.record.n_docs < segment.n_rows:
                matching = matching[np.arange(segment.n_rows) - segment.chunks]
            parts.append(matching)
        n_live = tuple(self.n_live(i) for i in range(len(parts)))
        return RowMask(tuple(parts), n_live, n_docs, sum(int(part.sum()) for part in parts))

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read the stored vectors of some rows, float32 (n, dim).

        Raises:
            ValueError: A row that the index does not hold.
        """
        vectors = np.empty((len(rows), self.settings.dim), np.float32)
        for segment, asked, at in self._located(rows):
            vectors[asked] = segment.vectors[at]
        return vectors

    def live(self, index: int) -> Live:
        """Which positions of a segment are live, bool (n_rows,); None means all."""
        return self._live[index]

    def n_live(self, index: int) -> int:
        """How many positions of a segment are live."""
        live = self._live[index]
        return self.segments[index].n_rows if live is None else int(live.sum())

    def live_rows_of(self, index: int) -> NDArray[np.int64]:
        """Return the live rows of one segment, ascending, (n_live,)."""
        rows, live = self.segments[index].rows, self._live[index]
        return rows if live is None else rows[live]

    def live_rows(self) -> NDArray[np.int64]:
        """Return the live rows of all segments, ascending, (n_rows,)."""
        rows = (self.live_rows_of(i) for i in range(len(self.segments)))
        return np.concatenate([np.empty(0, np.int64), *rows])

    def iter_documents(self) -> Iterator[Document]:
        """Read all live documents in the order of their rows."""
        for segment, live in zip(self.segments, self._live, strict=True):
            yield from read_documents(segment, live)

    def _checked(self, queries: NDArray[np.float32], k: int) -> NDArray[np.float32]:
        settings = self.settings
        if k < 1:
            raise QueryError(f"k is {k}; ask for at least 1 result.")
        queries = np.asarray(queries)
        if queries.dtype.kind not in "fiu":
            raise QueryError(f"The queries are of type {queries.dtype}; they must be real numbers.")
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if queries.ndim != 2 or queries.shape[1] != settings.dim:
            raise QueryError(
                f"The queries have shape {queries.shape}; this index holds vectors of "
                f"{settings.dim} numbers, so they must be (n_queries, {settings.dim})."
            )
        lengths = norms_of(queries)
        if not math.isfinite(np.add.reduce(lengths)):
            bad = int(np.flatnonzero(~np.isfinite(lengths))[0])
            raise QueryError(f"Query {bad} has a vector that is not finite; its model is broken.")
        return divide_by_norms(queries, lengths) if settings.metric == "cosine" else queries

    @cached_property
    def lexical(self) -> LexicalSearch:
        """Search by words.

        Raises:
            NoLexicalData: The index was made without.
            CorruptIndex: Documents cannot be read whose postings are lost.
        """
        if self.settings.lexical is None:
            raise NoLexicalData(
                f"{self.path} was built without lexical data; add them with "
                f"`sbert-search index lexical {self.path}`, or search with --mode dense."
            )
        parts = [
            LexicalPart(self.postings(i), part.firsts, part.rows[part.firsts], self.live_docs(i))
            for i, part in enumerate(self.segments)
        ]
        return LexicalSearch(parts, self.settings.lexical)

    def live_docs(self, index: int) -> Live:
        """Which documents of a segment are live, bool (n_docs,); None means all."""
        live = self._live[index]
        return None if live is None else live[self.segments[index].firsts]

    def postings(self, index: int) -> Postings:
        """Which documents of a segment hold which terms; needs lexical settings.

        Raises:
            CorruptIndex: Neither its postings nor its documents can be read.
        """
        return self._derived.postings(index, self.segments[index])

    def _read_tombstones(self, opened: Folder) -> NDArray[np.int64]:
        parts = [np.empty(0, np.int64)]
        for tombstone in self.manifest.tombstones:
            view = open_checked(opened, tombstone.file)
            parts.append(npy.read(view, tombstone.file.name, "i8", (tombstone.n_rows,)))
        return np.concatenate(parts)

    def _mark_live(self, dead: NDArray[np.int64]) -> list[Live]:
        live: dict[Segment, NDArray[np.bool_]] = {}
        try:
            for segment, _, at in self._located(dead):
                live[segment] = np.ones(segment.n_rows, bool)
                live[segment][at] = False
        except ValueError as error:
            raise CorruptIndex("del/", "rows of the index", str(error)) from error
        return [live.get(segment) for segment in self.segments]

    def _located(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Segment, NDArray[np.bool_], NDArray[np.int64]]]:
        """Sort rows by segment: which of them it holds, and their positions in it; -1 is nowhere.

        Raises:
            ValueError: A row that the index does not hold.
        """
        of = np.searchsorted(self._starts, rows, "right") - 1
        for index in np.unique(of[rows >= 0]):
            here = (of == index) & (rows >= 0)
            at = self.segments[index].positions(rows[here]) if index >= 0 else -rows[here] - 1
            if (at < 0).any():
                raise ValueError(f"{self.path} holds no row {rows[here][at < 0][0]}.")
            yield self.segments[index], here, at
