"""The indexes of a server: searches, reloads and updates of each."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, time
from typing import TypeVar

from sbert_search.base.progress import note, warn
from sbert_search.errors import IndexStoreError, ModelMismatch, NoLexicalData, SbertSearchError
from sbert_search.index.building.ingest import IngestReport
from sbert_search.index.building.settings import ReadKeywords
from sbert_search.index.index import Index
from sbert_search.records import Document, Where
from sbert_search.search.engine import SearchEngine
from sbert_search.search.facets import Facet
from sbert_search.search.options import (
    MatchKeywords,
    OrderKeywords,
    SearchOptions,
    keywords_of,
    require_queries,
)
from sbert_search.search.queries import pages_of_file, parse_query
from sbert_search.search.results import Hits
from sbert_search.serve.embedder import ServedEmbedder
from sbert_search.serve.metrics import Metrics
from sbert_search.serve.problems import Problem, problem_of
from sbert_search.serve.queue import Work
from sbert_search.serve.reranker import reranking_for
from sbert_search.text.fields import DOCUMENT_FIELDS

T = TypeVar("T")

RETRY_S = 5.0  # seconds until a refused commit is tried again
NO_RERANKER = "The server was started without --rerank, so it has no reranker."
# The folder part of an absolute path. Spaces in a path are recognised only inside quotes.
_FOLDERS = re.compile(r"(?<=')/(?:[^/'\n]+/)*|(?<![\w/.:'])/(?:[^/\s]+/)*")
_NO_MODEL = "The index has no model; search by words or by similar."


@dataclass
class ServedIndex:
    """An index with its engines."""

    name: str  # in requests
    index: Index  # `reload` moves it to new commits
    model: ServedEmbedder | None  # None: the index was built from given vectors
    engine: SearchEngine  # without a reranker
    reranking: SearchEngine | None  # with the reranker; None: the server has none
    metrics: Metrics
    querying: ServedEmbedder | None = None  # embeds queries; None: ``model`` does
    allow_inexact: bool = False  # for the model that embeds updates
    # Opens the model and the engines of a state that a migration has switched; None: such states
    # are refused.
    reopen: Callable[[Index], ServedIndex] | None = None
    loaded_at: float = field(default_factory=time)  # time of the served commit, in s since 1970
    reload_error: str = ""  # why the newest commit is not served; "": it is served
    _commit: int = field(init=False)  # the last commit in the metric of reloads
    _seen: tuple[int, ...] = ()  # stamp of the manifest at the last call of `reload`
    _refused: tuple[int, ...] | None = None  # stamp of the last manifest that was refused
    _reason: str = ""  # message of the last refusal; "": a commit was loaded since
    _retry_s: float = math.inf  # time (`monotonic`) to try a refused manifest again
    _readers: ThreadPoolExecutor = field(init=False, repr=False)
    _writer: ThreadPoolExecutor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.index.store.follows_migrations = False  # the model must change in the same moment
        self._commit, self._following = self.commit, asyncio.Lock()
        self._readers = ThreadPoolExecutor(2, thread_name_prefix=f"read {self.name}")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"write {self.name}")

    @property
    def commit(self) -> int:
        """Number of the commit that is served."""
        return self.index.state.manifest.generation

    @property
    def modes(self) -> list[str]:
        """Modes in which a text can be searched for."""
        modes = ["dense"] if (self.querying or self.model) is not None else []
        modes += ["lexical"] if self.index.state.manifest.lexical is not None else []
        return [*modes, "hybrid"] if len(modes) == 2 else modes

    async def search(
        self,
        queries: Sequence[str],
        options: SearchOptions,
        work: Work,
        *,
        reranks: bool = False,
        highlight: bool = False,
    ) -> list[Hits]:
        """Answer queries, whose vectors are computed in the queue of the model; []: list documents.

        Without a query, there is one result: the documents that pass the filter.
        """
        if reranks and self.reranking is None:
            raise Problem(400, NO_RERANKER, "rerank")
        engine = self.reranking if reranks and self.reranking else self.engine
        model = self.querying or self.model  # read with the engine: a migration changes both
        if not queries:
            with work.searching():
                return [await self._read(partial(self.engine.search, None, options=options))]
        with self.plain_errors():
            require_queries(queries)
            vectors = None
            if model is not None and options.mode != "lexical":
                plain = options.syntax == "plain"
                texts = list(queries) if plain else [parse_query(query).text for query in queries]
                embedded = await model.embed(texts, work, task="query", param="query")
                if embedded.vectors.any(axis=1).all():
                    vectors = embedded.vectors  # else the engine says what zeros mean for a query
            try:
                with work.searching(), reranking_for(work, self.metrics):
                    return await engine.asearch_many(
                        queries, vectors=vectors, options=options, highlight=highlight
                    )
            finally:
                self.metrics.searching.observe(work.search_s)

    async def similar(
        self, like: Sequence[str], unlike: Sequence[str], options: SearchOptions, work: Work
    ) -> Hits:
        """Find the documents nearest to some documents of the index."""
        for doc_id in (*like, *unlike):
            await self.document(doc_id)
        search = partial(self.engine.similar, like, options.k, unlike=unlike)
        with work.searching():
            return await self._read(partial(search, **keywords_of(options, OrderKeywords)))

    async def facets(
        self, query: str | None, columns: Sequence[str], options: SearchOptions, n: int = 10
    ) -> Mapping[str, Facet]:
        """Count the values of columns among the documents that match."""
        distinct, about = list(dict.fromkeys(columns)), keywords_of(options, MatchKeywords)
        return await self._read(partial(self.engine.facets, query, distinct, n=n, **about))

    async def about(self, query: str | None, options: SearchOptions) -> tuple[int, str | None]:
        """Count the documents that match, and correct a query that seems misspelt."""

        def read() -> tuple[int, str | None]:
            about = keywords_of(options, MatchKeywords)
            total = self.engine.count(query, group_by=options.group_by, **about)
            with suppress(NoLexicalData):  # also if a list of words is damaged
                if query is not None:
                    return total, self.engine.suggest(query, fuzzy=options.fuzzy)
            return total, None

        return await self._read(read)

    async def document(self, doc_id: str) -> Document:
        """Read a document; a `Problem` says that there is none."""
        found = await self._read(partial(self.index.get, doc_id))
        if found is None:
            pages = await self._read(lambda: pages_of_file(self.index.state, doc_id))
            said = f"{self.name} holds no document with the id {doc_id!r:.200}.{pages}"
            raise Problem(404, said, "id")
        return found

    async def reload(self) -> None:
        """Serve the newest commit of another process; if it cannot be opened, warn and go on.

        A commit of this server is served without this method, which only counts it.
        """
        stamp = self._manifest_stamp()
        if stamp == self._seen and monotonic() < self._retry_s:
            return
        self._seen, self._retry_s = stamp, math.inf
        try:
            moved = await self._moved()
        except Exception as error:  # of any kind, or the task that reloads would end silently
            self._retry_s = monotonic() + RETRY_S  # missing files may yet be copied or restored
            known = stamp == self._refused or str(error) == self._reason
            self._refused, self._reason = stamp, str(error)
            self.reload_error = self._refusal(error)
            if known:  # reported before; all commits of an unfinished build have the same reason
                return
            self.metrics.reload_failures.add(labels={"index": self.name})
            warn(f"{self.name}: the new commit is refused, the one before goes on: {error}")
            return
        self.reload_error = self._reason = ""
        if moved or self.commit != self._commit:
            self._commit, self.loaded_at = self.commit, time()
            self.metrics.reloads.add(labels={"index": self.name})
        if moved:
            note(f"{self.name}: commit {self.commit:,} is served, {len(self.index):,} documents.")

    def _refusal(self, error: Exception) -> str:
        """Say which commit is refused and why, without paths."""
        which = "The newest commit"
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            state = json.loads(self.index.store.commit_file.read_bytes().partition(b"\n")[2])
            which = f"Commit {state['generation']:,}"
        why = ""
        if isinstance(error, (SbertSearchError, OSError)):
            why = str(error).replace(str(self.index.path), self.name)
            why = ": " + _FOLDERS.sub("", why).removesuffix(".")
        return f"{which} was refused ({type(error).__name__}){why}."

    async def _moved(self) -> bool:
        """Move to the newest commit; return whether there was a newer one."""
        loop, index = asyncio.get_running_loop(), self.index
        try:
            # In the thread of updates, so that a refresh never undoes an update.
            return await loop.run_in_executor(self._writer, index.refresh)
        except IndexStoreError:
            if not await self._follow(index):
                raise
            return True

    async def _follow(self, index: Index) -> bool:
        """Change index, model and engines together, if a migration has switched ``index``."""

        def opened() -> ServedIndex | None:
            newest, before = Index.open(index.path), index.state.settings.digest
            newest.store.wait_s = index.store.wait_s
            if self.reopen is None or before not in newest.state.manifest.earlier:
                return None
            return self.reopen(newest)

        loop = asyncio.get_running_loop()
        async with self._following:
            if self.index is not index:  # another task has done it
                return True
            new = await loop.run_in_executor(self._writer, opened)
            if new is not None:
                self.index, self.model, self.querying = new.index, new.model, new.querying
                self.engine, self.reranking = new.engine, new.reranking
                new.close()
        return new is not None

    async def unknown(self, ids: Sequence[str]) -> list[str]:
        """Return the ids that no document has."""
        rows = await self._read(lambda: self.index.state.lookup(ids))
        return [doc_id for doc_id, row in zip(ids, rows.tolist(), strict=True) if row < 0]

    async def update(
        self,
        rows: Sequence[Mapping[str, object]],
        clear: Mapping[str, Collection[str]] | None = None,
        *,
        replaces: bool,
    ) -> tuple[IngestReport, int]:
        """Add documents; return the report, and the number of the commit that holds them.

        When this returns, they are on disk. The rows have the fields ``_id``, ``text``, ``title``
        and metadata. Without ``replaces``, an id that is indexed with other content is a
        `Problem`. With ``clear``, the columns that documents lose, rows are partial, and an id that
        is not indexed is a `Problem`.
        """

        # The index stores the field names of its source files; rows of a request have others.
        def change() -> IngestReport:
            options: ReadKeywords = {"fields": DOCUMENT_FIELDS, "metadata_fields": None}
            options["allow_inexact"] = self.allow_inexact
            copies = self._copies()
            new = [{n: row[part] for n, part in copies if row[part]} | dict(row) for row in rows]
            if not replaces:
                return self.index.add(new, model=self.model, **options)
            partial = clear is not None
            return self.index.upsert(new, model=self.model, partial=partial, clear=clear, **options)

        return await self._write(change)

    def _copies(self) -> list[tuple[str, str]]:
        """Return the columns that hold the whole text or title, each with "text" or "title"."""
        fields, columns = self.index.read_settings.fields, self.index.state.columns
        text = fields.texts[0] if len(fields.texts) == 1 else None
        sources = ((text, "text"), (fields.title, "title"))
        return [(n, part) for n, part in sources if n and columns.get(n) == "string"]

    async def delete(self, ids: Sequence[str] | None, where: Where | None) -> tuple[int, int]:
        """Delete documents on disk; return how many were deleted, and the number of the commit."""
        return await self._write(lambda: self.index.delete(ids, where=where))

    def close(self) -> None:
        """Finish the updates that were accepted, and cancel reads that have not begun."""
        self._writer.shutdown(wait=True)
        self._readers.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def plain_errors(self) -> Iterator[None]:
        """Raise errors as problems that show the name of the index in place of its path."""
        try:
            yield
        except SbertSearchError as error:
            problem = problem_of(error)
            if problem is None:
                raise
            if isinstance(error, ModelMismatch) and self.model is None:
                raise Problem(400, _NO_MODEL, "mode") from error
            if problem.status == 503:
                warn(f"{self.name}: {error}")
            problem.message = problem.message.replace(str(self.index.path), self.name)
            raise problem from error

    async def _read(self, function: Callable[[], T]) -> T:
        with self.plain_errors():
            return await asyncio.get_running_loop().run_in_executor(self._readers, function)

    async def _write(self, function: Callable[[], T]) -> tuple[T, int]:
        """Call a function in the thread that writes; also return the commit after it."""

        def written() -> tuple[T, int]:
            return function(), self.commit

        with self.plain_errors():
            loop, index = asyncio.get_running_loop(), self.index
            try:
                # Shielded: the client may hang up.
                return await asyncio.shield(loop.run_in_executor(self._writer, written))
            except IndexStoreError:  # the lock shows a state that a migration has switched
                if not await self._follow(index):
                    raise
                return await asyncio.shield(loop.run_in_executor(self._writer, written))

    def _manifest_stamp(self) -> tuple[int, ...]:
        """Return inode, time and size of the manifest, which each commit changes; (): no file."""
        try:
            status = self.index.store.commit_file.stat()
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_size
