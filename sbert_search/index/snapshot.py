"""One immutable state of an index for readers: search, filter, look up and read documents."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.arrays import distinct
from sbert_search.base.folders import Folder
from sbert_search.config import unknown_name
from sbert_search.errors import CorruptIndex, NoLexicalData, QueryError
from sbert_search.index.dense.exact import QUERY_BLOCK, TopK, exact_scores, offer_nearest
from sbert_search.index.dense.query_plan import RowMask, Selection
from sbert_search.index.derived_files import DerivedFiles, known_files
from sbert_search.index.lexical.analyzer import NearWords
from sbert_search.index.lexical.bm25 import LexicalPart, LexicalSearch, Matches
from sbert_search.index.lexical.postings import Live, Postings
from sbert_search.index.lexical.vocabulary import Vocabulary, WordList
from sbert_search.index.norms import divide_by_norms, norms_of
from sbert_search.index.settings import IndexSpec
from sbert_search.index.storage import ids
from sbert_search.index.storage import segments as npy
from sbert_search.index.storage.manifest import ColumnType, Manifest, VectorSettings
from sbert_search.index.storage.rows import (
    DistinctValues,
    StoredPassage,
    distinct_values,
    read_documents,
    read_passages,
)
from sbert_search.index.storage.segments import Segment, open_checked
from sbert_search.records import Document, MetadataValue, Where

if TYPE_CHECKING:
    from sbert_search.index.dense.segment_search import Part, SingleQuerySearch
    from sbert_search.index.shards.manifest import ShardManifest

COLUMNS_KEPT = 4  # metadata columns whose values are cached, 16 bytes for each value of a document
MASKS_KEPT = 4  # filters whose masks are cached; a mask takes one byte per row
MAX_RESULTS_HELD = 1 << 22  # most results (queries x k) of the queries that are searched together
READ_TOGETHER = 256  # documents that `Snapshot.iter_documents` reads at a time from several shards


class Snapshot:
    """The state of an index after one commit. Writers commit new states and never change this one.

    A row is the number of a passage in the index. It is live, unless its document was deleted or
    replaced; then it is dead. A segment is an immutable set of files for consecutive rows. A
    position is the index of a row in its segment. A document is identified by the row of its first
    passage. A parameter ``index`` of a method is the index of a segment in ``segments``.

    The state of a sharded index has the segments of the states ``parts``, one for each shard, by
    number; ``manifest`` joins their manifests, and ``shards`` is the content of shards.json. A row
    number is unique over all shards, but the rows of their segments may interleave. Results with
    equal scores are sorted by row, so they have the same order as in an index without shards.

    Otherwise, files are opened; the open files of ``reuse``, another state of the same folder, are
    used again. A file that is gone, for example after a compaction by another process, raises
    `FileNotFoundError`. Methods that get rows raise `ValueError` for a row that is not in the
    index.
    """

    missing: tuple[str, ...] = ()
    """Names of the shards that did not answer; always empty unless a cluster searches the index."""

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        reuse: Snapshot | None = None,
        *,
        parts: Sequence[Snapshot] = (),
        shards: ShardManifest | None = None,
    ) -> None:
        self.folder, self.manifest, self.shards = folder, manifest, shards
        self._parts = tuple(parts)
        self._selections: list[Selection | None]
        self._starts = np.array([record.row_start for record in manifest.segments], np.int64)
        self._masks: dict[str, RowMask] = {}
        self._distinct: dict[str, DistinctValues] = {}
        if parts:
            self.segments: list[Segment] = [s for part in parts for s in part.segments]
            self._derived: list[DerivedFiles] = [d for part in parts for d in part._derived]
            self._live: list[Live] = [live for part in parts for live in part._live]
            self._selections = [selection for part in parts for selection in part._selections]
        else:
            self._open(reuse)
        self.anns = [files.ann for files in self._derived]

    def _open(self, reuse: Snapshot | None) -> None:
        manifest = self.manifest
        known = {(s.record.docs, s.stored.file): s for s in reuse.segments} if reuse else {}
        derived = known_files(reuse._derived if reuse else ())
        with self.folder.kept_open() as opened:
            self.segments = [
                known.get((record.docs, record.vectors[manifest.active].file))
                or Segment(opened, record, manifest)
                for record in manifest.segments
            ]
            self._derived = [
                DerivedFiles(opened, manifest, segment, record, derived)
                for segment, record in zip(self.segments, manifest.segments, strict=True)
            ]
            dead = self._read_tombstones(opened)
        self._live = self._mark_live(dead)
        self._selections = [None if live is None else Selection(live) for live in self._live]

    def with_spec(self, spec: IndexSpec) -> Snapshot:
        """Return this state with other search settings; its files are not opened again."""
        changed = self.manifest.with_settings(replace(self.settings, spec=spec))
        return Snapshot(self.folder, changed, self, parts=self._parts, shards=self.shards)

    @property
    def path(self) -> Path:
        """The path by which the folder was opened."""
        return self.folder.path

    @property
    def is_sharded(self) -> bool:
        """Whether the index has shards, be it only one."""
        return self.shards is not None

    @property
    def n_shards(self) -> int:
        """Number of shards; 1 if the index has none."""
        return len(self.parts)

    @property
    def parts(self) -> tuple[Snapshot, ...]:
        """The states of the shards, by number; of an index without shards, this state."""
        return self._parts or (self,)

    @property
    def part_folders(self) -> list[str]:
        """Names of the folders of `parts`, relative to that of the index; "": the same folder."""
        return [shard.folder for shard in self.shards.shards] if self.shards else [""]

    @property
    def n_docs(self) -> int:
        """Number of live documents, which a search can find."""
        return self.manifest.n_docs

    @property
    def n_rows(self) -> int:
        """Number of live rows, which a search can find."""
        return self.manifest.n_rows

    @property
    def settings(self) -> VectorSettings:
        """The settings of the set of vectors in use."""
        return self.manifest.settings

    @property
    def columns(self) -> Mapping[str, ColumnType]:
        """Metadata columns and their types."""
        return self.manifest.columns

    def widens(self, name: str) -> bool:
        """Whether a column can become float64, or a list of another type, without loss."""
        if self.columns[name].startswith("list["):
            return not any(segment.has_list_items(name) for segment in self.segments)
        return not any(segment.rounded_as_float(name) for segment in self.segments)

    def search(
        self,
        queries: NDArray[np.float32],
        k: int,
        mask: RowMask | None = None,
        *,
        exact: bool = False,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the k rows whose vectors have the best scores for each query (n_queries, dim).

        Returns scores, float32 (n_queries, k), best first, and their rows, int64 (n_queries, k). Of
        rows with equal scores, the lower one comes first. If fewer than k rows may be returned, the
        remaining scores are -inf and the remaining rows -1. ``mask`` is one of this snapshot; None:
        all live rows. ``exact``: scan all vectors, without the FAISS files.
        """
        queries = self._checked(queries, k)
        if len(queries) == 1 and mask is None and not exact and self._single_query:
            nearest = self._single_query.nearest(queries, k)
            if nearest is not None:
                return nearest
        selections = mask.selections if mask else self._selections
        anns = [None] * len(self.segments) if exact else self.anns
        apart: list[Part] = list(zip(self.segments, anns, selections, strict=True))
        parts = apart if exact or mask else self._parts_searched
        best, several = TopK.empty(len(queries), k), len(apart) > 1
        needed = min(k, mask.n_rows if mask else self.n_rows)
        step = max(1, min(QUERY_BLOCK, MAX_RESULTS_HELD // k))
        for i in range(0, len(queries), step):
            block = slice(i, i + step)
            top, together = best.take(block), queries[block]
            for part in parts:
                offer_nearest(top, together, *part, self.settings, fill=not several)
            short = top.rows[:, needed - 1] < 0
            if several and any(anns) and short.any():
                rest = TopK.empty(int(short.sum()), k)
                for part in apart:
                    offer_nearest(rest, together[short], *part, self.settings)
                top.scores[short], top.rows[short] = rest.scores, rest.rows
        return best.scores, best.rows

    @cached_property
    def _parts_searched(self) -> list[Part]:
        """What a search without a filter searches."""
        parts = list(zip(self.segments, self.anns, self._selections, strict=True))
        if sum(map(bool, self.anns)) < 2:
            return [*parts]
        from sbert_search.index.dense.segment_search import joined

        return joined(parts)

    @cached_property
    def _single_query(self) -> SingleQuerySearch | None:
        """A faster search for one query without a filter; None without FAISS files or on a GPU."""
        if not any(self.anns):
            return None
        from sbert_search.index.dense.segment_search import SingleQuerySearch

        return SingleQuerySearch.of(self._parts_searched, self.settings)

    def fetch(self, rows: Sequence[int] | NDArray[np.int64]) -> list[StoredPassage]:
        """Read passages with their documents, in the order of ``rows``."""
        rows = np.asarray(rows, np.int64)
        places = ((segment, at) for segment, _, at in self.located(rows))
        passages = {passage.row: passage for passage in read_passages(places, self.columns)}
        if (rows < 0).any():
            raise ValueError(f"{self.path} holds no row {rows.min()}.")
        return [passages[row] for row in rows.tolist()]

    def doc_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of the first passage of each row's document; any shape; -1 stays -1."""
        docs = np.full(rows.shape, -1, np.int64)
        for segment, here, at in self.located(rows):
            docs[here] = rows[here] - segment.chunks[at]
        return docs

    def doc_ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Read the ids of the documents of rows (n,), none negative, in their order."""
        doc_ids = np.empty(len(rows), object)
        for segment, here, at in self.located(rows):
            doc_ids[here] = segment.doc_ids(at)
        return list(doc_ids)

    def bytes_of(self, rows: NDArray[np.int64]) -> int:
        """Estimate the stored bytes of some rows, without their vectors."""
        return sum(segment.bytes_at(at) for segment, _, at in self.located(rows))

    def lookup(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Find live documents by id: rows of their first passages, int64 (n,), -1 if absent."""
        return self.find(doc_ids)[0]

    def find(self, doc_ids: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Find live documents by id: first rows, and content hashes, (n,); -1 and 0 if absent."""
        rows = np.full(len(doc_ids), -1, np.int64)
        contents = np.zeros(len(doc_ids), np.uint64)
        hashes = ids.hash_ids(doc_ids)
        for segment, live in zip(self.segments, self._live, strict=True):
            which, column = ids.candidates(segment.ids, hashes)
            if len(which) == 0:
                continue
            at = segment.firsts_of(column)
            stored = segment.doc_ids(at)
            same = np.array([stored[i] == doc_ids[n] for i, n in enumerate(which)], bool)
            same &= True if live is None else live[at]
            rows[which[same]] = segment.rows[at[same]]
            contents[which[same]] = segment.ids[2, column[same]]
        return rows, contents

    def rows_of(self, docs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all rows of some documents, ascending, given the rows of their first passages."""
        parts = [np.empty(0, np.int64)]
        for segment, _, at in self.located(docs):
            n, firsts = segment.firsts.searchsorted(at, "right"), segment.firsts
            ends = np.where(n < len(firsts), firsts[np.minimum(n, len(firsts) - 1)], segment.n_rows)
            counts = ends - at
            before = np.cumsum(counts) - counts  # number of rows of the documents before
            parts.append(segment.rows[np.repeat(at - before, counts) + np.arange(counts.sum())])
        return np.sort(np.concatenate(parts))

    def filter_mask(self, where: Where) -> RowMask:
        """Find the live rows whose documents match an SQL condition over their metadata."""
        return self.own_filter_mask(where)

    def own_filter_mask(self, where: Where) -> RowMask:
        """Find the rows that `filter_mask` finds, in this process even if a cluster is used."""
        from sbert_search.index.filters.structured import condition_text  # not for other searches

        text = condition_text(where)
        mask = self._masks.pop(text, None) or self._find_matching(where)
        self._masks[text] = mask  # a dict keeps the order of insertion: the newest mask is last
        for oldest in list(self._masks)[:-MASKS_KEPT]:
            self._masks.pop(oldest, None)
        return mask

    def _find_matching(self, where: Where) -> RowMask:
        from sbert_search.index.filters import conditions  # imports sqlglot, for filters only

        condition = conditions.parse(where, self.columns)
        parts, n_docs = [], 0
        for segment, live in zip(self.segments, self._live, strict=True):
            matching = condition.matching(segment)  # marks first passages only
            if live is not None:
                matching &= live
            n_docs += int(matching.sum())
            if segment.record.n_docs < segment.n_rows:
                matching = matching[np.arange(segment.n_rows) - segment.chunks]
            parts.append(matching)
        n_live = tuple(self.n_live(i) for i in range(len(parts)))
        return RowMask(tuple(parts), n_live, n_docs, sum(int(part.sum()) for part in parts))

    def mask_of_documents(self, marks: Sequence[NDArray[np.bool_]]) -> RowMask:
        """Make a mask of all rows of some live documents.

        ``marks``: for each segment, bool (n_docs,), in the order of rows, False for dead documents.
        """
        parts = tuple(
            docs
            if segment.record.n_docs == segment.n_rows
            else np.repeat(docs, np.diff(segment.firsts, append=segment.n_rows))
            for segment, docs in zip(self.segments, marks, strict=True)
        )
        n_live = tuple(self.n_live(i) for i in range(len(parts)))
        n_docs = sum(int(docs.sum()) for docs in marks)
        return RowMask(parts, n_live, n_docs, sum(int(part.sum()) for part in parts))

    def distinct_values(self, name: str) -> DistinctValues:
        """Read the values of a metadata column; the values of the last few columns are cached."""
        kind = self.column_type(name)
        values = self._distinct.pop(name, None) or distinct_values(self.segments, name, kind)
        self._distinct[name] = values
        for oldest in list(self._distinct)[:-COLUMNS_KEPT]:
            self._distinct.pop(oldest, None)
        return values

    def column_type(self, name: str) -> ColumnType:
        """Return the type of a metadata column; refuse an unknown column."""
        if name not in self.columns:
            raise QueryError(unknown_name(name, name, self.columns, "metadata column"))
        return self.columns[name]

    def metadata(self, name: str, rows: NDArray[np.int64]) -> list[MetadataValue]:
        """Read the values of a metadata column, given the rows of documents' first passages."""
        values = np.empty(len(rows), object)
        for segment, here, at in self.located(rows):
            values[here] = segment.metadata_at(name, at)
        return list(values)

    def codes_of(self, name: str, docs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the codes of documents, int64 (n,), in a column without lists; -1: no value.

        The code of a value is its index among the distinct values of the column, in ascending
        order. ``docs`` are the rows of the documents' first passages.
        """
        distinct = self.distinct_values(name)
        codes = np.full(len(docs), -1, np.int64)
        for segment, here, at in self.located(docs):
            index = self.segments.index(segment)
            of_documents = distinct.codes_of_documents(index, segment.record.n_docs)
            codes[here] = of_documents[np.searchsorted(segment.firsts, at)]
        return codes

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read the stored vectors of some rows, float32 (n, dim)."""
        vectors = np.empty((len(rows), self.settings.dim), np.float32)
        for segment, here, at in self.located(rows):
            vectors[here] = segment.vectors[at]
        return vectors

    def scores_of(self, query: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score rows for a query (1, dim), exactly as `search` scores what it returns, (n,)."""
        query, scores = self._checked(query, 1), np.empty(len(rows))
        for segment, here, at in self.located(rows):
            scores[here] = exact_scores(query, segment.vectors, at, at, self.settings.metric)
        return scores

    def holds(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the index has each row, live or dead: bool, shaped like ``rows``."""
        held = np.zeros(rows.shape, bool)
        for segment in self.segments:
            held |= segment.positions(rows) >= 0
        return held

    def live(self, index: int) -> Live:
        """Return which positions of a segment are live, bool (n_rows,); None: all are live."""
        return self._live[index]

    def n_live(self, index: int) -> int:
        """Return the number of live rows of a segment."""
        live = self._live[index]
        return self.segments[index].n_rows if live is None else int(live.sum())

    def live_rows_of(self, index: int) -> NDArray[np.int64]:
        """Return the live rows of one segment, ascending, (n_live,)."""
        rows, live = self.segments[index].rows, self._live[index]
        return rows if live is None else rows[live]

    def live_rows(self) -> NDArray[np.int64]:
        """Return the live rows of all segments, ascending, (n_rows,)."""
        of_segments = (self.live_rows_of(i) for i in range(len(self.segments)))
        rows = np.concatenate([np.empty(0, np.int64), *of_segments])
        return np.sort(rows) if self._interleaves else rows

    def iter_documents(self) -> Iterator[Document]:
        """Read all live documents, ordered by their rows."""
        if not self._interleaves:
            for segment, live in zip(self.segments, self._live, strict=True):
                yield from read_documents(segment, live, self.columns)
            return
        of_segments = zip(self.segments, self._live, strict=True)
        firsts = [
            s.rows[s.chunks == 0 if live is None else (s.chunks == 0) & live]
            for s, live in of_segments
        ]
        rows = np.sort(np.concatenate([np.empty(0, np.int64), *firsts]))
        for start in range(0, len(rows), READ_TOGETHER):
            for passage in self.fetch(rows[start : start + READ_TOGETHER]):
                yield passage.document

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
                f"{settings.dim} dimensions, so their shape must be (n_queries, {settings.dim})."
            )
        norms = norms_of(queries)
        if not math.isfinite(np.add.reduce(norms)):  # the sum is not finite if any norm is not
            bad = int(np.flatnonzero(~np.isfinite(norms))[0])
            raise QueryError(
                f"Query {bad}, counted from 0, has a vector that is not finite in float32. Pass "
                "another vector; if a model made this one, use another model or precision."
            )
        return divide_by_norms(queries, norms) if settings.metric == "cosine" else queries

    @cached_property
    def lexical(self) -> LexicalSearch:
        """Lexical search of this state; `NoLexicalData` if the index has no lexical settings."""
        if self.manifest.lexical is None:
            raise NoLexicalData(
                f"{self.path} was built without lexical data; add it with "
                f"`sbert-search index lexical {self.path}`, or search with --mode dense."
            )
        return LexicalSearch(self._lexical_parts(), self.manifest.lexical)

    def _lexical_parts(self) -> list[LexicalPart]:
        return [
            LexicalPart(
                self.postings(i), segment.firsts, segment.rows[segment.firsts], self.live_docs(i)
            )
            for i, segment in enumerate(self.segments)
        ]

    def match(
        self,
        queries: Sequence[str],
        k: int,
        mask: RowMask | None = None,
        near: NearWords | None = None,
        also: Sequence[NDArray[np.int64]] | None = None,
    ) -> list[Matches]:
        """Find the documents with the best BM25 scores; arguments as for `LexicalSearch.search`."""
        return self.lexical.search(queries, k, mask, near, also)

    def for_queries(self, *, complete: bool = False) -> Snapshot:
        """Return the state that answers some queries together; here, this state itself.

        If a cluster searches the index, a copy of the state is returned, which sends all its
        requests to the same processes. Its results may lack documents of the shards in ``missing``.
        With ``complete``, a shard that does not answer is an error even if the index allows results
        without it.
        """
        return self

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of 3 to 64 letters in all documents, and the number of their occurrences.

        Words of a dead document are included until its segment is rewritten.
        """
        if self.manifest.lexical is None:
            raise NoLexicalData(
                f"{self.path} was built without lexical data; add it with "
                f"`sbert-search index lexical {self.path}`."
            )
        lists = [self.words(i) for i in range(len(self.segments))]
        known = [words for words in lists if words is not None]
        if len(known) < len(lists):
            raise NoLexicalData(
                f"{self.path} does not list its words, because a file is damaged; "
                f"`sbert-search index repair {self.path}` makes the list."
            )
        return Vocabulary(known, self.manifest.lexical.language)

    def words(self, index: int) -> WordList | None:
        """Return the words of a segment; None if its word list is absent or damaged."""
        return self._derived[index].words()

    def selection(self, index: int) -> Selection | None:
        """Return the live rows of a segment as a `Selection`; None: all rows are live."""
        return self._selections[index]

    def live_docs(self, index: int) -> Live:
        """Return which documents of a segment are live, bool (n_docs,); None: all are live."""
        live = self._live[index]
        return None if live is None else live[self.segments[index].firsts]

    def postings(self, index: int) -> Postings:
        """Return the postings of a segment; the index must have lexical settings."""
        return self._derived[index].postings()

    def _read_tombstones(self, opened: Folder) -> NDArray[np.int64]:
        parts = [np.empty(0, np.int64)]
        for tombstone in self.manifest.tombstones:
            view = open_checked(opened, tombstone.file)
            parts.append(npy.read(view, tombstone.file.name, "i8", (tombstone.n_rows,)))
        return np.concatenate(parts)

    def _mark_live(self, dead: NDArray[np.int64]) -> list[Live]:
        live: dict[Segment, NDArray[np.bool_]] = {}
        try:
            for segment, _, at in self.located(dead):
                live[segment] = np.ones(segment.n_rows, bool)
                live[segment][at] = False
        except ValueError as error:
            raise CorruptIndex("del/", "rows of the index", str(error)) from error
        return [live.get(segment) for segment in self.segments]

    @property
    def _interleaves(self) -> bool:
        """Whether the rows of several shards may interleave."""
        return len(self._parts) > 1

    def located(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Segment, NDArray[np.bool_], NDArray[np.int64]]]:
        """Group rows by the segment that holds them; negative rows are left out.

        Yields a segment, the mask of its rows, shaped like ``rows``, and their positions in it.
        """
        if len(self.segments) == 1:  # as below, in less time
            [segment] = self.segments
            at = segment.positions(rows.ravel())
            if len(at) and at.min() >= 0:
                yield segment, np.ones(rows.shape, bool), at
                return
        if self._interleaves:
            yield from self._located_anywhere(rows)
            return
        segment_of = np.searchsorted(self._starts, rows, "right") - 1
        for index in distinct(segment_of[rows >= 0]).tolist():
            here = (segment_of == index) & (rows >= 0)
            if index < 0:  # before the first segment
                raise ValueError(f"{self.path} holds no row {rows[here][0]}.")
            segment = self.segments[index]
            at = segment.positions(rows[here])
            if (at < 0).any():
                raise ValueError(f"{self.path} holds no row {rows[here][at < 0][0]}.")
            yield segment, here, at

    def _located_anywhere(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Segment, NDArray[np.bool_], NDArray[np.int64]]]:
        """Group rows as `located` does, by a look into each segment in whose range one lies."""
        absent = rows >= 0
        if not absent.any():
            return
        low, high = rows[absent].min(), rows.max()
        for segment in self.segments:
            if segment.record.row_start > high or segment.record.row_end <= low:
                continue
            at = segment.positions(rows)
            here = at >= 0
            if here.any():
                absent &= ~here
                yield segment, here, at[here]
        if absent.any():
            raise ValueError(f"{self.path} holds no row {rows[absent][0]}.")
