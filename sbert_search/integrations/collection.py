"""The index behind a framework's document store: created when needed, written, read, searched."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from itertools import groupby, islice
from pathlib import Path
from typing import ParamSpec, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.files import TemporaryFolder
from sbert_search.embed.arguments import ModelLike
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import NotAnIndex, QueryError, UnfinishedBuild
from sbert_search.index.building.build import BuildKeywords
from sbert_search.index.building.ingest import Mode
from sbert_search.index.documents import iter_documents
from sbert_search.index.index import Index
from sbert_search.index.storage.ids import hash_contents
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.integrations.records import FIELDS, Record, record_of, row_of
from sbert_search.records import RowCounts, Where
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchOptions
from sbert_search.search.ordering import PairScorer
from sbert_search.search.queries import QueryLike
from sbert_search.search.results import Hits

P = ParamSpec("P")
T = TypeVar("T")

WAIT_S = 30.0  # seconds that a writer waits for another writer of the index


def in_thread(method: Callable[P, T]) -> Callable[P, Coroutine[object, object, T]]:
    """Return the asynchronous form of a method, which calls the method in a thread."""

    @wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        self, *rest = args
        result: T = await asyncio.to_thread(getattr(self, method.__name__), *rest, **kwargs)
        return result

    return call


def in_runs(documents: Sequence[T], test: Callable[[T], bool]) -> list[Sequence[T]]:
    """Split documents where the result of a test changes, so that each run is written in its way.

    The runs keep the order of the documents, in which a store returns them.
    """
    return [list(run) for _, run in groupby(documents, key=test)]


def _is_blank(record: Record) -> bool:
    return not record.text.strip()


class Collection:
    """Documents of a framework in an index.

    Every read and every search sees the newest commit, also one of another process. Threads may
    share a collection: they write one after the other and search at the same time.

    Without ``path``, the index is in a temporary folder, which is deleted with this object. A model
    given by name is opened at the first use, and compared with that of the index then. Without a
    model, that of an existing index is used; a new index has none, and vectors of dimension ``dim``
    come with the documents. A writer waits ``wait_s`` for another one. ``settings`` are those of a
    new index.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        model: ModelLike | None = None,
        *,
        dim: int | None = None,
        reranker: PairScorer | None = None,
        wait_s: float = WAIT_S,
        **settings: Unpack[BuildKeywords],
    ) -> None:
        self.written = RowCounts()  # rows that this object has written, by outcome
        self._model, self._dim, self.reranker = model, dim, reranker
        self._wait_s, self._settings = wait_s, settings
        self._writing = threading.RLock()
        self._engine: SearchEngine | None = None
        if path is None:
            scratch = TemporaryFolder()
            weakref.finalize(self, scratch.remove)
            path = scratch.path / "index"
        self.path = Path(path).absolute()
        try:
            self._use(Index.open(self.path, wait_s=wait_s))
        except NotAnIndex:
            if self.path.is_dir() and any(self.path.iterdir()):
                raise
            if model is not None or dim is not None:
                self._create(dim)

    def _create(self, dim: int | None) -> Index:
        if self._model is None:
            index = Index.create(self.path, dim=dim, **self._settings)
        else:
            index = Index.create(self.path, model=self._model, **self._settings)
        index.store.wait_s = self._wait_s
        return self._use(index)

    def _use(self, index: Index) -> Index:
        self._engine = SearchEngine(index, self._model, self.reranker)
        return index

    @property
    def engine(self) -> SearchEngine | None:
        """The engine on the newest commit; None: there is no index yet."""
        if self._engine is None:
            try:
                self._use(Index.open(self.path, wait_s=self._wait_s))
            except NotAnIndex:
                return None
        elif self._writing.acquire(blocking=False):  # a write refreshes the index itself
            try:
                with suppress(UnfinishedBuild):  # by another process; the old state stays in use
                    self._engine.refresh()
            finally:
                self._writing.release()
        return self._engine

    @property
    def index(self) -> Index | None:
        """The index on its newest commit; None: there is no index yet."""
        return None if (engine := self.engine) is None else engine.index

    @property
    def seen(self) -> Index | None:
        """The index as last opened or refreshed, maybe behind the newest commit; None: no index."""
        return None if self._engine is None else self._engine.index

    @property
    def columns(self) -> dict[str, ColumnType]:
        """Metadata columns and their types."""
        return {} if (index := self.index) is None else dict(index.state.columns)

    @property
    def dim(self) -> int | None:
        """Dimension of the vectors; None: there is no index yet."""
        return self._dim if (index := self.index) is None else index.state.settings.dim

    @property
    def embedder(self) -> TextEmbedder:
        """The model of the index; an error if there is none yet."""
        if (engine := self.engine) is None:
            raise QueryError(f"{self.path} holds no index yet; write documents first.")
        return engine.embedder

    def __len__(self) -> int:
        return 0 if (index := self.index) is None else len(index)

    def write(
        self,
        records: Sequence[Record],
        vectors: NDArray[np.floating] | None = None,
        *,
        mode: Mode = "upsert",
    ) -> RowCounts:
        """Write documents, which are durable when this returns; return their number by outcome.

        Without ``vectors``, (n_records, dim), the model makes them. Many documents are written in
        several commits; after an interrupt or an error, the index may hold only the first ones. If
        the index holds an id with other content, ``upsert`` replaces the held document, and ``add``
        raises a `CorpusError`.
        """
        if not records:
            return RowCounts()
        with self._writing:
            if (index := self.index) is None:
                index = self._create(None if vectors is None else vectors.shape[1])
            write = index.upsert if mode == "upsert" else index.add
            counts = RowCounts()
            # The index refuses a blank text without a vector, so the vectors of blank texts are
            # computed here. The index itself splits and embeds all other texts.
            for run in in_runs(records, _is_blank) if vectors is None else [records]:
                given = vectors
                if given is None and _is_blank(run[0]):
                    given = self.embedder.encode_document([record.text for record in run])
                rows = list(map(row_of, run))
                if given is not None:
                    report = write(rows, vectors=given, fields=FIELDS)
                else:
                    report = write(rows, model=self.embedder, fields=FIELDS)
                counts += report.counts
        self.written += counts
        return counts

    def get(self, ids: Iterable[str]) -> list[Record]:
        """Read documents by id, in the order of the ids; absent ones are left out."""
        if (index := self.index) is None or not (wanted := list(ids)):
            return []
        state = index.state
        rows = state.lookup(wanted)
        return [record_of(passage.document) for passage in state.fetch(rows[rows >= 0])]

    def with_given_vectors(
        self, where: Where | None = None
    ) -> list[tuple[Record, NDArray[np.float32] | None]]:
        """Read the documents that match a filter, with the vectors, (dim,), that came with them.

        The vector is None for a document that the model has embedded, unless the document is a
        whole file of one passage.
        """
        if (index := self.index) is None:
            return []
        state = index.state
        documents = list(iter_documents(state, where))
        rows, contents = state.find([document.doc_id for document in documents])
        given = np.full(len(rows), not index.identity.is_model)
        if index.identity.is_model:
            # The hash of a document with a given vector includes that vector. A document made from
            # a whole file has the hash of the file, which differs too, though the model made the
            # vectors. If the file was split, its first passage ends before the text does.
            given = hash_contents(documents) != contents
            for at, passage in enumerate(state.fetch(rows)):
                given[at] &= passage.char_end == len(passage.document.full_text)
        vectors = iter(state.vectors(rows[given]))
        return [
            (record_of(document), next(vectors) if has_vector else None)
            for document, has_vector in zip(documents, given, strict=True)
        ]

    def example(self) -> tuple[str, NDArray[np.float32]] | None:
        """Return the text and the vector, (dim,), of some passage; None: no document has a text."""
        if (index := self.index) is None:
            return None
        document = next((each for each in index if each.full_text), None)
        if document is None:
            return None
        (passage,) = index.state.fetch(index.state.lookup([document.doc_id]))
        return passage.text, index.state.vectors(np.array([passage.row]))[0]

    def documents(self, where: Where | None = None, n: int | None = None) -> list[Record]:
        """Read the first ``n`` documents that match a filter, in the order of their addition."""
        if (index := self.index) is None:
            return []
        return list(map(record_of, islice(index.documents(where), n)))

    def count(self, where: Where | None = None) -> int:
        """Count the documents that match a filter."""
        if where is None:
            return len(self)
        if (index := self.index) is None:
            return 0
        return sum(1 for _ in index.documents(where))

    def delete(self, ids: Iterable[str] | None = None, *, where: Where | None = None) -> int:
        """Delete documents by id or filter, durably, and return their number."""
        with self._writing:
            if (index := self.index) is None:
                return 0
            return index.delete(None if ids is None else list(ids), where=where)

    def search(
        self,
        query: QueryLike,
        options: SearchOptions,
        *,
        vector: NDArray[np.floating] | None = None,
    ) -> Hits:
        """Search by a text or a vector; without documents there are no hits."""
        if (engine := self.engine) is None:
            return Hits(mode=options.mode)
        return engine.search(query, vector=vector, options=options)

    def with_vectors(self, hits: Hits) -> tuple[Hits, NDArray[np.float32]]:
        """Return the hits whose passages the index still holds, and their vectors, (n, dim).

        Another process may have deleted the other hits and compacted the index since the search.
        """
        index = self.index
        if index is None or not hits:
            return Hits(mode=hits.mode), np.empty((0, self.dim or 0), np.float32)
        state = index.state
        rows = np.array([hit.row for hit in hits])
        held = state.holds(rows)
        kept = Hits((hits[at] for at in np.flatnonzero(held)), query=hits.query, mode=hits.mode)
        return kept, state.vectors(rows[held])

    def iter_hits(self, queries: Sequence[str], options: SearchOptions) -> Iterator[Hits]:
        """Search by several texts, which are embedded together; yield the hits of each.

        Hits are read query by query, so that the caller can convert those of one query to its own
        objects before it asks for the next. Fewer objects are then alive at the same time.
        """
        if (engine := self.engine) is None:
            return (Hits(query=query, mode=options.mode) for query in queries)
        return engine.iter_hits(queries, options=options)
