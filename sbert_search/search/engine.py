"""The search engine: embeds queries, retrieves documents, fuses, reranks and highlights them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import memory
from sbert_search.base.processor import usable_cores
from sbert_search.base.threads import Threads, Turns
from sbert_search.config import names_of, require_known, unknown_name
from sbert_search.embed.arguments import CheckedOptions, MatchingOptions, ModelLike
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ClusterError, ConfigError, QueryError
from sbert_search.index.documents import first_rows
from sbert_search.index.index import Index
from sbert_search.index.snapshot import Snapshot
from sbert_search.records import Hit, Query
from sbert_search.search.fusion import Ranking
from sbert_search.search.hits import (
    AnswerReader,
    order_page,
    page_hits,
    scores_by_id,
    within_memory,
)
from sbert_search.search.options import (
    MatchKeywords,
    OrderKeywords,
    SearchKeywords,
    SearchOptions,
    Syntax,
    require_queries,
)
from sbert_search.search.queries import (
    CheckedQueries,
    Examples,
    QueriesLike,
    QueryLike,
    checked_queries,
    example_query,
    one_query,
)
from sbert_search.search.results import Hits
from sbert_search.search.retrieval import (
    HITS_AT_ONCE,
    RESULTS_AT_ONCE,
    Retrieved,
    query_blocks,
    retrieve,
    retrieve_similar,
)

# Functions that need these modules import them, so that searches without them start faster.
if TYPE_CHECKING:
    from sbert_search.search.facets import Facet
    from sbert_search.search.ordering import PairScorer
    from sbert_search.search.words import Marks

RUN_DEPTH = 100  # documents that `SearchEngine.run` returns for a query by default

# Bytes that a search needs for blocks of vectors, scores and candidates, without the texts of hits.
WORK_BYTES = 128 << 20


class ShardRunner(Protocol):
    """Searches the shards of an index in other processes, as `RayRunner` does."""

    def placed(self, state: Snapshot, /) -> Snapshot:
        """Return the same state, to be searched in these processes, or raise `ClusterError`."""


class SearchEngine:
    """Searches one index with the model that built it.

    The engine searches the current state of its `Index` object. It sees updates made through that
    object at once, and updates by other processes or objects after `refresh`. Threads may share an
    engine. At most as many threads search at the same time as there are cores; the others wait in
    the order of their calls. A batch of queries is answered in blocks of up to 256, so that other
    threads can search between two blocks.

    Args:
        index: An open index, or the folder of an index or sharded index, which the engine opens.
        embedder: An `Embedder` or a ``SentenceTransformer``; or the name or folder of a model,
            which is opened at the first query. None: the model named in the index.
        reranker: Scores the first hits of every search again, from query and passage together.
        reader: A `Predictor` of a model for questions, which looks for the answer to the query in
            the first ``answer_depth`` hits and fills `Hit.answer`.
        runner: Searches the shards of a sharded index on other machines, such as a `RayRunner`;
            None: this process does.
        query_model: Name of a query model of the index, which embeds the queries; ``embedder``
            then names another place to find it. None: the model of the index does.
        allow_inexact: Only warn if the index's model, in another engine or precision, gives
            vectors of check texts that differ too much from those stored in the index.
        options: How to open a model by name: ``device``, ``engine``, ``precision``, ``quick``; see
            `Index.matching_embedder`.

    Attributes:
        index: The index.
        opened: The model, if it was needed so far; else None.

    Raises:
        TypeError: There is no such keyword.
        IndexStoreError: The index cannot be opened, or is an unfinished build.
        ConfigError: The reranker has no ``predict``, the reader has no ``answer``, there is a
            runner and the index has no shards, or the index has no such query model.
        ClusterError: The cluster of the runner does not answer.
        ModelMismatch: The embedder is not the model that built the index. A model given by name
            is compared at the first query.

    Example:
        >>> rows = [{"_id": "mill", "text": "A river turns the wheel.", "year": 1850}]
        >>> engine = SearchEngine(Index.build(rows, model="hashing"))
        >>> [hit.doc_id for hit in engine.search("river wheel", where="year < 1900")]
        ['mill']
    """

    def __init__(
        self,
        index: Index | str | Path,
        embedder: ModelLike | None = None,
        reranker: PairScorer | None = None,
        *,
        reader: AnswerReader | None = None,
        runner: ShardRunner | None = None,
        query_model: str | None = None,
        allow_inexact: bool = False,
        **options: Unpack[MatchingOptions],
    ) -> None:
        for name in options.keys() - MatchingOptions.__annotations__.keys():
            raise TypeError(unknown_name(name, name, MatchingOptions.__annotations__, "keyword"))
        memory.let_freed_memory_stay()
        self.index = index if isinstance(index, Index) else Index.open(index)
        self.index.require_finished()
        if reranker is not None and not callable(getattr(reranker, "predict", None)):
            raise ConfigError(
                f"{reranker!r} cannot rerank: it has no method predict. Pass Reranker(MODEL), or a "
                "CrossEncoder of sentence-transformers."
            )
        if reader is not None and not callable(getattr(reader, "answer", None)):
            raise ConfigError(
                f"{reader!r} cannot read hits: it has no method answer. Pass Predictor(MODEL)."
            )
        self.reranker, self.reader, self.runner = reranker, reader, runner
        self._model, self.query_model = embedder, query_model
        self._turns = Turns(usable_cores())  # more threads than cores would not search faster
        self._threads = Threads(usable_cores())
        self._model_options: CheckedOptions = {"allow_inexact": allow_inexact, **options}
        self._loading = Lock()
        self._models: dict[str, TextEmbedder] = {}  # opened ones, by `VectorSettings.digest`
        self._has_embedder = not (embedder is None or isinstance(embedder, (str, Path)))
        self._digest = self._digest_of(self.index.state)  # of the model that ``embedder`` names
        if self._has_embedder:
            self.load_model()
        self._state()

    def __reduce__(self) -> tuple[Callable[..., SearchEngine], tuple[object, ...]]:
        """Pickle the arguments of the constructor; unpickling opens index and model again."""
        again = partial(
            SearchEngine,
            reader=self.reader,
            runner=self.runner,
            query_model=self.query_model,
            **self._model_options,
        )
        return again, (self.index, self._model, self.reranker)

    @property
    def embedder(self) -> TextEmbedder:
        """The model, checked against the index. The first access opens the model."""
        return self.load_model()

    @property
    def opened(self) -> TextEmbedder | None:
        """The model that was opened last; None: no search has needed one yet."""
        return next(reversed(self._models.values()), None)

    def load_model(self) -> TextEmbedder:
        """Open the model now and not at the first query.

        Raises:
            ModelError: The model cannot be opened.
            ModelMismatch: The model is not the one that built the index.
        """
        return self._model_of(self.index.state)

    def _model_of(self, state: Snapshot) -> TextEmbedder:
        """Open the model that made the vectors of a state, which a migration may have changed."""
        from sbert_search.index.building.model_check import open_matching

        digest = self._digest_of(state)
        with self._loading:
            if opened := self._models.get(digest):
                return opened
            self.index.require_finished()
            model = self._model if digest == self._digest or self._has_embedder else None
            options: CheckedOptions = {**self._model_options}
            allow_inexact, quick = options.pop("allow_inexact"), options.pop("quick", False)
            opened = open_matching(
                state,
                model,
                options,
                allow_inexact=allow_inexact,
                quick=quick,
                named=False,
                query_model=self.query_model,
            )
            # Searches of the state before a migration may still run; older models are closed.
            kept = list(self._models.items())[-1:]
            self._models = dict([*kept, (digest, opened)])
            return opened

    def _digest_of(self, state: Snapshot) -> str:
        """Return the digest of the model that embeds the queries.

        A model that was given opened stays in use, even if its name gets another query model.
        """
        if self.query_model is None or self._has_embedder:
            return state.settings.digest
        from sbert_search.index.building.model_check import query_settings

        return query_settings(state, self.query_model).digest

    def refresh(self) -> bool:
        """Move to the newest committed state of the index; return whether there was a newer one."""
        return self.index.refresh()

    def require_memory(self) -> None:
        """Refuse searches that the memory limit of this process does not allow.

        If there is a limit (`set_memory_limit`), the model of the index is opened, so that its
        memory counts.

        Raises:
            ConfigError: The process would exceed the limit with its model and a search; the message
                says how much is left.
            ModelError: The model cannot be opened.
            ModelMismatch: The model is not the one that built the index.
        """
        if (limit := memory.limit()) is not None:
            memory.require(WORK_BYTES + limit // 8, "A search")
            if self.index.identity.is_model or self.query_model is not None:
                self.load_model()
            memory.require(WORK_BYTES + limit // 8, "A search")

    def search(
        self,
        query: QueryLike | None,
        k: int | None = None,
        *,
        vector: NDArray[np.floating] | None = None,
        options: SearchOptions | None = None,
        highlight: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> Hits:
        """Find the documents that answer a query.

        Args:
            query: Any text, or a vector of the index's model, (dim,). ``"exact phrase"``, ``+must``
                and ``-not`` in a text are filters, unless ``syntax="plain"``. None: all documents
                that pass the filter match, with the score 0; they are in the order of ``sort``, or
                in that in which they were indexed. This needs no model.
            k: Documents to return; None: ``options.k``, which is 10 by default.
            vector: The vector of the text ``query``, (dim,); None: the index's model computes it.
            options: How documents are found and ordered; None: the defaults of `SearchOptions`.
            highlight: Fill `Hit.best_sentence` and `Hit.matched_words`. With a given vector, the
                sentence is chosen by words only, unless the engine was given an embedder.
            keywords: Fields of ``options`` to replace, such as ``mode`` and ``where``; see
                `SearchOptions`.

        Returns:
            Hits, best first; with ``diversity``, ``sort`` or ``group_by``, in the order that these
            give. In dense and in lexical search, documents with equal scores are in the order in
            which they were indexed. A text whose vector is 0 by the metric cosine, since the model
            knows none of its words, finds no document in dense search, and a warning is given.

        Raises:
            QueryError: The query is blank, has only words to exclude, or is neither a text nor a
                finite vector of the index's dimension; a vector is given without the text that the
                mode, a reranker, a reader or ``highlight`` reads; an option is out of range, the
                filter is wrong, the index holds no document, or a model returns values that are
                not finite. Also if an option that needs scores is given without a query.
            ModelError: The model cannot be opened.
            ModelMismatch: The model is not the one that built the index, or the index was built
                from given vectors, without a model.
            NoLexicalData: The mode or an operator in the query needs lexical data, and the index
                was built without it.
        """
        chosen = self._options(options, k, keywords)
        if query is None and vector is None:
            return self._listed(chosen)
        queries, vectors = one_query(cast("QueryLike", query), vector)
        return next(self._answers(queries, vectors, chosen, highlight=highlight))

    def search_many(
        self,
        queries: QueriesLike,
        k: int | None = None,
        *,
        vectors: NDArray[np.floating] | None = None,
        options: SearchOptions | None = None,
        highlight: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hits]:
        """Answer several queries: texts, or vectors (n_queries, dim).

        ``vectors``, (n_queries, dim), are the vectors of the texts; None: the index's model
        computes them. Other arguments and errors as for `search`.
        """
        return list(
            self.iter_hits(
                queries, k, vectors=vectors, options=options, highlight=highlight, **keywords
            )
        )

    async def asearch(
        self,
        query: QueryLike | None,
        k: int | None = None,
        *,
        vector: NDArray[np.floating] | None = None,
        options: SearchOptions | None = None,
        highlight: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> Hits:
        """Call `search` in a thread of the engine, so that the event loop of asyncio goes on.

        At most as many searches run at the same time as there are cores. If a call is cancelled
        before its search has begun, the search never runs. A search that has begun runs to its end
        in its thread. Arguments and errors as for `search`.
        """
        return await self._threads.run(
            lambda: self.search(
                query, k, vector=vector, options=options, highlight=highlight, **keywords
            )
        )

    async def asearch_many(
        self,
        queries: QueriesLike,
        k: int | None = None,
        *,
        vectors: NDArray[np.floating] | None = None,
        options: SearchOptions | None = None,
        highlight: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hits]:
        """Call `search_many` in a thread of the engine, as `asearch` does."""
        return await self._threads.run(
            lambda: self.search_many(
                queries, k, vectors=vectors, options=options, highlight=highlight, **keywords
            )
        )

    def iter_hits(
        self,
        queries: QueriesLike,
        k: int | None = None,
        *,
        vectors: NDArray[np.floating] | None = None,
        options: SearchOptions | None = None,
        highlight: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> Iterator[Hits]:
        """Yield the hits of one query after the other; arguments and errors as for `search_many`.

        Queries are answered in blocks. Only the hits of one block are in memory at a time.
        """
        chosen = self._options(options, k, keywords)
        return self._answers(queries, vectors, chosen, highlight=highlight)

    def run(
        self,
        queries: Sequence[Query],
        k: int | None = None,
        *,
        vectors: NDArray[np.floating] | None = None,
        options: SearchOptions | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> dict[str, dict[str, float]]:
        """Answer queries and return a run: for each query id, scores by document id, best first.

        Without ``options``, ``k`` is 100 by default. The default of ``syntax`` is ``plain``. The
        texts of documents are read only if a reranker needs them. ``vectors`` as for `search_many`.
        Other arguments and errors as for `search`.

        With ``group_by``, a run has the values of the column in place of ids of documents, and the
        score of the best document of each.

        Raises:
            QueryError: Also if ``group=False``, ``diversity``, ``sort`` or ``group_size`` is given.
        """
        return dict(self.iter_run(queries, k, vectors=vectors, options=options, **keywords))

    def iter_run(
        self,
        queries: Sequence[Query],
        k: int | None = None,
        *,
        vectors: NDArray[np.floating] | None = None,
        options: SearchOptions | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield the items of `run` one by one; arguments and errors as for `run`.

        Queries are answered in blocks. Only the rankings of one block are in memory at a time.
        """
        chosen = self._options(options or SearchOptions(k=RUN_DEPTH), k, keywords, "plain")
        if not chosen.group:
            raise QueryError(
                "group is False, but a run has one score for each document; leave group out."
            )
        for name in ("diversity", "sort", "group_size"):
            if getattr(chosen, name) != getattr(SearchOptions(), name):
                raise QueryError(
                    f"{name} is {getattr(chosen, name)!r}; a run is ordered by score, so leave it "
                    "out, or use search_many."
                )
        ranked = self._ranked([query.text for query in queries], vectors, chosen)
        return zip((query.query_id for query in queries), ranked, strict=True)

    def facets(
        self,
        query: str | None,
        columns: str | Sequence[str],
        *,
        n: int = 10,
        **keywords: Unpack[MatchKeywords],
    ) -> dict[str, Facet]:
        """Count the values of metadata columns among all documents that match; needs no model.

        Args:
            query: A text. In lexical and hybrid search, a document matches if it has a word of the
                text and meets the operators in it. In dense search, every document that meets the
                operators matches. None: every document matches.
            columns: A list, or one text with commas. ``price:0:50:100`` counts the ranges from 0 to
                below 50, to below 100, from 100 on, and, if there are lower values, below 0.
            n: Maximum number of values in ``Facet.counts``, and of ranges in ``Facet.ranges``, for
                each column.
            keywords: ``where``, ``mode``, ``syntax`` and ``fuzzy``; see `SearchOptions`.

        Returns:
            A `Facet` for each column, by the name of the column.

        Raises:
            QueryError: There is no such column, ``n`` is below 1, the filter is wrong, or the query
                is blank or has only words to exclude.
            TypeError: There is no such keyword.
            NoLexicalData: The mode or an operator needs lexical data, and the index has none.
        """
        from sbert_search.search.facets import count_values

        snapshot, names = self._state(), names_of(columns)
        if isinstance(columns, str) and not names:
            raise QueryError("facets is empty; name a column, or several with commas.")
        with self._turns:
            marks = self._matching(snapshot, query, keywords)
            found = [count_values(snapshot, name, marks, n) for name in dict.fromkeys(names)]
        facets = {facet.column: facet for facet in found}
        if len(facets) < len(found):
            raise QueryError(f"{', '.join(names)} name a column twice; count it in one way.")
        return facets

    def count(
        self,
        query: str | None = None,
        *,
        group_by: str | None = None,
        **keywords: Unpack[MatchKeywords],
    ) -> int:
        """Count all documents that match, as `facets` does; needs no model.

        In hybrid search these are the documents with a word of the query. The search itself ranks
        every document that passes the filter and meets the operators, so it may return more.

        Args:
            query: As for `facets`.
            group_by: Count the values of this column in place of documents, as ``k`` and ``offset``
                of a search do; each document without a value counts, too.
            keywords: As for `facets`.

        Raises:
            QueryError: The filter is wrong, or the query is blank or has only words to exclude.
            TypeError: There is no such keyword.
            NoLexicalData: As for `facets`.
        """
        from sbert_search.search.facets import count_groups

        snapshot = self._state()
        with self._turns:
            marks = self._matching(snapshot, query, keywords)
            if group_by is not None:
                return count_groups(snapshot, group_by, marks)
        return sum(int(some.sum()) for some in marks)

    def _matching(self, snapshot: Snapshot, query: str | None, keywords: MatchKeywords) -> Marks:
        from sbert_search.search.facets import matching_marks

        require_known(keywords, MatchKeywords)
        options = self._options(None, None, cast("SearchKeywords", keywords))
        return matching_marks(snapshot, query, options.for_index(snapshot))

    def suggest(self, query: str, *, fuzzy: int = 0) -> str | None:
        """Correct misspelt words of a query by words of the index; needs no model.

        Args:
            query: The text.
            fuzzy: Edits of a fuzzy search, which needs no corrections that it finds by itself.

        Returns:
            The corrected query, or None if nothing seems misspelt or the index has no similar word.

        Raises:
            QueryError: The query is blank or no string.
            NoLexicalData: The index was built without lexical data, or a list of its words is
                damaged.
        """
        from sbert_search.search.words import suggest

        require_queries([query])
        with self._turns:
            return suggest(self._state(), query, fuzzy)

    def similar(
        self,
        like: Examples,
        k: int = 10,
        *,
        unlike: Examples = (),
        **keywords: Unpack[OrderKeywords],
    ) -> Hits:
        """Find the documents whose vectors are nearest to those of examples; needs no model.

        Args:
            like: One example or a list of examples. An example is the id of a document in the
                index, or a vector of the index's model: an array (dim,), or a list of floats if it
                is the only example.
            k: Documents to return; the documents among the examples are never returned.
            unlike: Examples that the hits shall be far from. The hits are nearest to p + (p - n),
                with the means p of ``like`` and n of ``unlike``, as in Qdrant's recommendations;
                without ``unlike``, to p. A document counts with the mean of its passages.
            keywords: Fields of `SearchOptions` that need no text of a query, such as ``where``,
                ``offset`` and ``sort``. With ``group_by``, no document is returned that has the
                value of an example, such as other pages of the same file.

        Returns:
            Hits, best first, with the score of the dense stage, to which boosts are added.

        Raises:
            QueryError: There is no example, an example is neither the id of a document in the index
                nor a finite vector of the index's dimension, the examples cancel out, an option is
                out of range, or the filter is wrong.
            TypeError: There is no such keyword.
        """
        require_known(keywords, OrderKeywords)
        options = SearchOptions(mode="dense", rerank_depth=0).with_keywords(k, **keywords)
        state = self._state().for_queries()
        with self._turns:
            query, doc_ids = example_query(state, like, unlike)
            found = retrieve_similar(state, query, state.lookup(doc_ids), options)
            (page,) = order_page(state, [found], options, None)
            hits = page_hits(state, page, options, highlight=False, embedder=None)
        return _hits_of(state, hits, options, mode="dense")

    def _listed(self, options: SearchOptions) -> Hits:
        """Return the documents that pass the filter, of which no query gives scores."""
        from sbert_search.search.facets import groups_of

        unused = ("boost", "diversity", "min_score")
        if named := [name for name in unused if getattr(options, name)]:
            raise QueryError(f"{named[0]} needs the scores of a query; leave it out, or use sort.")
        state = self._state()
        with self._turns:
            docs = first_rows(state, options.where)
            groups = docs if (by := options.group_by) is None else groups_of(state, by, docs)
            ranking = Ranking(docs, docs, np.zeros(len(docs)))
            options = replace(options, mode="dense")
            (found,) = order_page(state, [Retrieved("", "", None, ranking)], options, None)
            hits = page_hits(state, found, options, highlight=False, embedder=None)
        return _hits_of(state, hits, options, total=len(np.unique(groups)))

    def _state(self) -> Snapshot:
        """Return the present state of the index, placed by the runner if there is one."""
        state = self.index.state
        if self.runner is None:
            return state
        try:
            return self.runner.placed(state)
        except ClusterError:
            if self.index.state is state:
                raise
        return self.runner.placed(self.index.state)  # a commit removed files of ``state``

    def _answers(
        self,
        queries: QueriesLike,
        vectors: NDArray[np.floating] | None,
        options: SearchOptions,
        *,
        highlight: bool,
    ) -> Iterator[Hits]:
        needs_text = "A reranker" if self.reranker else "The option highlight" if highlight else ""
        needs_text = "A reader" if self.reader else needs_text
        snapshot = self._state()
        checked, options = checked_queries(
            snapshot, queries, vectors, options, needs_text, has_model=self.query_model is not None
        )
        # With given vectors, the model is not opened only to choose sentences.
        may_embed = vectors is None or self._has_embedder
        embedder = partial(self._model_of, snapshot) if may_embed else None
        read = partial(page_hits, reader=self.reader, highlight=highlight, embedder=embedder)
        for asked in query_blocks(snapshot, checked, options, HITS_AT_ONCE):
            state = snapshot.for_queries()
            block = self._found(state, asked, options)
            for part in within_memory(state, block, memory.limit()):
                with self._turns:
                    if self.reranker:
                        part = order_page(state, part, options, self.reranker)
                    answers = [read(state, found, options) for found in part]
                for found, hits in zip(part, answers, strict=True):
                    yield _hits_of(state, hits, options, query=found.asked, mode=options.mode)

    def _ranked(
        self, queries: Sequence[str], vectors: NDArray[np.floating] | None, options: SearchOptions
    ) -> Iterator[dict[str, float]]:
        snapshot = self._state()
        checked, options = checked_queries(
            snapshot, queries, vectors, options, has_model=self.query_model is not None
        )
        budget = memory.limit() if self.reranker else None  # only a reranker reads texts
        for asked in query_blocks(snapshot, checked, options, RESULTS_AT_ONCE):
            state = snapshot.for_queries(complete=True)
            block = self._found(state, asked, options)
            for part in within_memory(state, block, budget):
                with self._turns:
                    if self.reranker:
                        part = order_page(state, part, options, self.reranker)
                    rankings = [found.ranking for found in part]
                    scores = list(scores_by_id(state, rankings, options.group_by))
                yield from scores

    def _found(
        self, state: Snapshot, asked: CheckedQueries, options: SearchOptions
    ) -> list[Retrieved]:
        """Find documents for each query; without a reranker, order them and keep the page."""
        with self._turns:
            block = retrieve(state, asked, options, partial(self._model_of, state))
            return block if self.reranker else order_page(state, block, options, None)

    def _options(
        self,
        options: SearchOptions | None,
        k: int | None,
        keywords: SearchKeywords,
        syntax: Syntax = "operators",
    ) -> SearchOptions:
        """Combine the options of a call; without a reranker, ``rerank_depth`` is set to 0."""
        chosen = (options or SearchOptions()).with_keywords(k, **keywords)
        if self.reranker is not None and chosen.rerank_depth < 1:
            raise QueryError(f"rerank_depth is {chosen.rerank_depth}; it must be at least 1.")
        depth = 0 if self.reranker is None else chosen.rerank_depth
        return replace(chosen, syntax=chosen.syntax or syntax, rerank_depth=depth)


def _hits_of(
    state: Snapshot,
    hits: Sequence[Hit],
    options: SearchOptions,
    *,
    query: str = "",
    mode: str = "",
    total: int | None = None,
) -> Hits:
    kept = None if options.fields is None else names_of(options.fields)
    return Hits(
        hits,
        query=query,
        mode=mode,
        commit=state.manifest.generation,
        missing=state.missing,
        total=total,
        columns={n: kind for n, kind in state.columns.items() if kept is None or n in kept},
    )
