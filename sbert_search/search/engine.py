"""The search engine: embeds queries, retrieves documents, fuses, reranks and highlights them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.arguments import CheckedOptions, MatchingOptions, ModelLike
from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.errors import ConfigError, QueryError
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.index import Index
from sbert_search.index.snapshot import Snapshot
from sbert_search.records import Hit, Query
from sbert_search.runtime import memory
from sbert_search.runtime.cores import usable_cores
from sbert_search.runtime.progress import note
from sbert_search.runtime.turns import Turns
from sbert_search.search.dense import nearest_documents
from sbert_search.search.fusion import fuse
from sbert_search.search.highlight import best_sentences
from sbert_search.search.hits import body_of, read_hits
from sbert_search.search.lexical import (
    best_passages,
    best_sentence,
    informative_words,
    matching_documents,
)
from sbert_search.search.operators import Clause, ParsedQuery, parse_query
from sbert_search.search.options import SearchKeywords, SearchOptions, Syntax, require_queries
from sbert_search.search.ranking import Ranking
from sbert_search.search.rerank import PairScorer, rerank
from sbert_search.search.similar import Examples, example_query
from sbert_search.search.word_filter import fill_up, word_mask

RUN_DEPTH = 100  # documents that `SearchEngine.run` returns for a query by default

# Largest numbers of items that are in memory for the queries answered together.
_QUERIES_AT_ONCE = 256
_HITS_AT_ONCE = 1 << 14  # hits with their texts
_RESULTS_AT_ONCE = 1 << 17  # documents of which only id and score are kept
_PAIRS_AT_ONCE = 16_384  # pairs of query and text for a reranker
# Memory of a search for blocks of vectors, scores and candidates, without the texts of hits.
WORK_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class _Retrieved:
    """A query's text, its vector (dim,) unless the search is lexical, and the documents found."""

    query: str
    vector: NDArray[np.float32] | None
    ranking: Ranking


class SearchEngine:
    """Searches one index with the model that built it.

    The engine searches the current state of its `Index` object. It sees updates made through that
    object at once, and updates by other processes or objects after `refresh`. Threads may share an
    engine. At most as many threads search at the same time as there are cores; the others wait in
    the order of their calls. A batch of queries is answered in blocks of up to 256, so that other
    threads can search between two blocks.

    Args:
        index: An open index, or the folder of an index, which the engine opens.
        embedder: An `Embedder` or a ``SentenceTransformer``; or the name or folder of a model,
            which is opened at the first query. None: the model named in the index.
        reranker: Scores the first hits of every search again. It reads query and passage together.
        allow_inexact: Accept the index's model in another engine or precision even if its vectors
            of some check texts differ too much from those stored in the index.
        options: How to open a model by name: ``device``, ``engine``, ``precision``, ``quick``; see
            `Index.matching_embedder`.

    Raises:
        IndexStoreError: The index cannot be opened, or is an unfinished build.
        ConfigError: The reranker has no ``predict``.
        ModelMismatch: The embedder is not the model that built the index. A model given by name
            is compared at the first query.
    """

    def __init__(
        self,
        index: Index | str | Path,
        embedder: ModelLike | None = None,
        reranker: PairScorer | None = None,
        *,
        allow_inexact: bool = False,
        **options: Unpack[MatchingOptions],
    ) -> None:
        memory.let_freed_memory_stay()
        self.index = index if isinstance(index, Index) else Index.open(index)
        self.index.require_finished()
        if reranker is not None and not callable(getattr(reranker, "predict", None)):
            raise ConfigError(
                f"{reranker!r} cannot rerank: it has no predict. Pass Reranker(MODEL), or a "
                "CrossEncoder of sentence-transformers."
            )
        self.reranker = reranker
        self._model = embedder
        self._turns = Turns(usable_cores())  # more threads than cores would not search faster
        self._memory_bytes: int | None = None
        self._model_options: CheckedOptions = {"allow_inexact": allow_inexact, **options}
        if not (embedder is None or isinstance(embedder, (str, Path))):
            self.load_model()

    def __reduce__(self) -> tuple[Callable[..., SearchEngine], tuple[object, ...]]:
        """Pickle the arguments; the process that unpickles them opens index and model itself."""
        again = partial(SearchEngine, **self._model_options)
        return again, (self.index, self._model, self.reranker)

    @cached_property
    def embedder(self) -> TextEmbedder:
        """The model, checked against the index."""
        return self.index.matching_embedder(self._model, **self._model_options)

    def load_model(self) -> TextEmbedder:
        """Open the model now and not at the first query.

        Raises:
            ModelError: The model cannot be opened.
            ModelMismatch: The model is not the one that built the index.
        """
        return self.embedder

    def refresh(self) -> bool:
        """Move to the newest committed state of the index, by `Index.refresh`."""
        return self.index.refresh()

    def require_memory(self, memory_bytes: int | None) -> None:
        """Refuse a memory budget that this process would exceed with its model and a search.

        Raises:
            ConfigError: The budget is too small; the message says how much of it is left.
        """
        self._memory_bytes = memory_bytes
        if memory_bytes is not None:
            memory.give_back_freed(memory_bytes)
            memory.require(memory_bytes, WORK_BYTES + memory_bytes // 8, "A search")
            self.load_model()
            memory.require(memory_bytes, WORK_BYTES + memory_bytes // 8, "A search")

    def search(
        self,
        query: str,
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        highlight: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit]:
        """Find the documents that answer a query.

        Args:
            query: Any text. ``"exact phrase"``, ``+must`` and ``-not`` in it are filters, unless
                ``syntax="plain"``.
            k: Documents to return; None: ``options.k``, which is 10 by default.
            options: How documents are found and ordered; None: the defaults of `SearchOptions`.
            highlight: Fill `Hit.best_sentence` and `Hit.matched_words`.
            keywords: Fields of ``options`` to replace: ``mode``, ``where``, ``fusion``,
                ``rerank_depth``, ``offset``, ``min_score``, ``syntax``.

        Returns:
            Hits, best first. In dense and in lexical search, documents with equal scores are in the
            order in which they were indexed.

        Raises:
            QueryError: The query is blank or no string, or has only words to exclude; an option is
                out of range, the filter is wrong, the index holds no document, or a model returns
                values that are not finite.
            NoLexicalData: The mode or an operator in the query needs lexical data, and the index
                was built without it.
        """
        chosen = self._options(options, k, keywords)
        return next(self._answers([query], chosen, highlight=highlight))

    def search_many(
        self,
        queries: Sequence[str],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        highlight: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> list[list[Hit]]:
        """Answer several queries; arguments and errors as for `search`."""
        chosen = self._options(options, k, keywords)
        return list(self._answers(queries, chosen, highlight=highlight))

    def answers(
        self,
        queries: Sequence[str],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Iterator[list[Hit]]:
        """Yield the hits of one query after the other; arguments and errors as for `search`.

        Only the hits of the queries that are answered together are in memory.
        """
        return self._answers(queries, self._options(options, k, keywords))

    def run(
        self,
        queries: Sequence[Query],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> dict[str, dict[str, float]]:
        """Answer queries and return a run: for each query id, scores by document id, best first.

        ``k`` is 100 by default, and ``syntax`` is ``plain``. Texts are read only if a reranker
        needs them. Other arguments and errors as for `search`.
        """
        return dict(self.rankings(queries, k, options=options, **keywords))

    def rankings(
        self,
        queries: Sequence[Query],
        k: int | None = None,
        *,
        options: SearchOptions | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield the items of `run` one by one; arguments and errors as for `run`.

        Only the rankings of the queries that are answered together are in memory.
        """
        chosen = self._options(options or SearchOptions(k=RUN_DEPTH), k, keywords, "plain")
        ranked = self._ranked([query.text for query in queries], chosen)
        return zip((query.query_id for query in queries), ranked, strict=True)

    def similar(
        self,
        like: Examples,
        k: int = 10,
        *,
        unlike: Examples = (),
        where: str | None = None,
    ) -> list[Hit]:
        """Find the documents whose vectors are nearest to those of examples; needs no model.

        Args:
            like: One example or a list of examples. An example is the id of a document in the
                index, or a vector of the index's model: an array (dim,).
            k: Documents to return; the documents among the examples are never returned.
            unlike: Examples that the hits shall be far from; see `example_query`.
            where: A filter over the metadata.

        Returns:
            Hits, best first, with the score of the dense stage.

        Raises:
            QueryError: There is no example, an example is not in the index or no vector of it, k is
                below 1, or the filter is wrong.
        """
        options = SearchOptions(k=k, where=where)
        snapshot = self.index.state
        with self._turns:
            query, doc_ids = example_query(snapshot, like, unlike)
            mask = None if where is None else snapshot.filter_mask(where)
            (ranking,) = nearest_documents(snapshot, query[None], k + len(set(doc_ids)), mask)
            found = read_hits(snapshot, ranking)
        hits = [hit for hit in found if hit.doc_id not in doc_ids]
        return [replace(hit, rank=rank) for rank, hit in enumerate(hits[: options.k], 1)]

    def _answers(
        self, queries: Sequence[str], options: SearchOptions, *, highlight: bool = False
    ) -> Iterator[list[Hit]]:
        snapshot = self.index.state
        for texts in self._blocks(snapshot, queries, options, _HITS_AT_ONCE):
            with self._turns:
                block = self._retrieve(snapshot, texts, options)
            for part in self._within_memory(snapshot, block, options):
                with self._turns:
                    read = zip(part, self._read(snapshot, part, options), strict=True)
                    pages = ((found, list(options.page(hits, _score))) for found, hits in read)
                    answers = [
                        self._highlight(snapshot, found, hits) if highlight else hits
                        for found, hits in pages
                    ]
                yield from answers

    def _ranked(self, queries: Sequence[str], options: SearchOptions) -> Iterator[dict[str, float]]:
        snapshot = self.index.state
        for texts in self._blocks(snapshot, queries, options, _RESULTS_AT_ONCE):
            with self._turns:
                block = self._retrieve(snapshot, texts, options)
                firsts = [_page(found.ranking, options) for found in block]
                scores = None if self.reranker else list(_scores(snapshot, firsts))
            if scores is not None:
                yield from scores
                continue
            for part in self._within_memory(snapshot, block, options):
                with self._turns:
                    read = self._read(snapshot, part, options)
                for hits in read:
                    yield {hit.doc_id: hit.score for hit in options.page(hits, _score)}

    def _options(
        self,
        options: SearchOptions | None,
        k: int | None,
        keywords: SearchKeywords,
        syntax: Syntax = "operators",
    ) -> SearchOptions:
        """Combine the options of a call, whose default syntax is given.

        Without a reranker, ``rerank_depth`` is 0.
        """
        chosen = (options or SearchOptions()).with_keywords(k, **keywords)
        chosen = replace(chosen, syntax=chosen.syntax or syntax)
        if self.reranker is None:
            return replace(chosen, rerank_depth=0)
        if chosen.rerank_depth < 1:
            raise QueryError(f"rerank_depth is {chosen.rerank_depth}; it must be at least 1.")
        return chosen

    def _blocks(
        self, snapshot: Snapshot, queries: Sequence[str], options: SearchOptions, at_once: int
    ) -> Iterator[Sequence[str]]:
        """Check the queries, then yield them in blocks that are answered together."""
        if snapshot.n_docs == 0:
            raise QueryError(
                f"{snapshot.path} holds no documents; add some with "
                f"`sbert-search index add {snapshot.path} SOURCE`."
            )
        require_queries(queries)
        depth = min(max(options.depth, options.fusion.depth), snapshot.n_docs)
        pairs = _PAIRS_AT_ONCE // max(1, options.rerank_depth)
        step = max(1, min(_QUERIES_AT_ONCE, pairs, at_once // depth))
        for start in range(0, len(queries), step):
            yield queries[start : start + step]

    def _retrieve(
        self, snapshot: Snapshot, queries: Sequence[str], options: SearchOptions
    ) -> list[_Retrieved]:
        """Find documents for each query; queries that demand the same words are ranked together."""
        parse = parse_query if options.syntax == "operators" else ParsedQuery
        parsed = list(map(parse, queries))
        mask = None if options.where is None else snapshot.filter_mask(options.where)
        texts = [query.text for query in parsed]
        vectors = None if options.mode == "lexical" else self._embed(texts)
        demands: dict[tuple[Clause, ...], list[int]] = {}
        for i, query in enumerate(parsed):
            demands.setdefault(query.clauses, []).append(i)
        found: dict[int, _Retrieved] = {}
        for clauses, at in demands.items():
            admitted = word_mask(snapshot, clauses, mask) if clauses else mask
            some = None if vectors is None else vectors[at]
            rankings = _rankings(snapshot, [texts[i] for i in at], some, admitted, options)
            if admitted and options.mode == "lexical" and not all(c.excluded for c in clauses):
                rankings = [fill_up(snapshot, r, admitted, options.depth) for r in rankings]
            for i, ranking in zip(at, rankings, strict=True):
                vector = None if vectors is None else vectors[i]
                found[i] = _Retrieved(texts[i], vector, ranking)
        return [found[i] for i in range(len(queries))]

    def _embed(self, queries: Sequence[str]) -> NDArray[np.float32]:
        tokens = self.embedder.tokenize(queries, task="query")
        if tokens.lost.any():
            which = f"{np.count_nonzero(tokens.lost):,} of {len(queries):,} queries are"
            note(
                f"{'The query is' if len(queries) == 1 else which} longer than the "
                f"{self.embedder.max_len:,} tokens the model reads; {tokens.lost.sum():,} tokens "
                "were cut off."
            )
        vectors = self.embedder.encode_tokens(tokens)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            query = queries[int(np.argmin(finite))]
            raise QueryError(f"The model gives a vector that is not finite for {query[:60]!r}.")
        return vectors

    def _within_memory(
        self, snapshot: Snapshot, block: Sequence[_Retrieved], options: SearchOptions
    ) -> Iterator[Sequence[_Retrieved]]:
        """Split queries into parts, so that the texts of a part's hits fit into the memory budget.

        Raises:
            ConfigError: The texts of one query's hits do not fit.
        """
        budget = self._memory_bytes
        if budget is None:
            yield block
            return
        part: list[_Retrieved] = []
        taken, allowed = 0, budget // 32
        for found in block:
            n_bytes = snapshot.bytes_of(found.ranking.first(options.depth).docs)
            if n_bytes > allowed:
                raise ConfigError(
                    f"The documents found for {found.query[:60]!r} take {memory.mib(n_bytes)}, but "
                    f"only {memory.mib(allowed)}, 1/32 of --memory, may hold documents; allow more "
                    "memory, or ask for fewer documents with -k."
                )
            if part and taken + n_bytes > allowed:
                yield part
                part, taken = [], 0
            part.append(found)
            taken += n_bytes
        yield part

    def _read(
        self, snapshot: Snapshot, block: Sequence[_Retrieved], options: SearchOptions
    ) -> list[list[Hit]]:
        """Read the documents found for each query, and order them by the reranker if there is one.

        Returns:
            Hits of each query in their final order.
        """
        read = []
        for found in block:
            ranking = found.ranking.first(options.depth)
            read.append(read_hits(snapshot, best_passages(snapshot, found.query, ranking)))
        if self.reranker is None:
            return read
        queries = [found.query for found in block]
        return rerank(self.reranker, queries, read, options.fusion.rerank_weight)

    def _highlight(self, snapshot: Snapshot, found: _Retrieved, hits: list[Hit]) -> list[Hit]:
        """Add to each hit the sentence to show and the words of the query that the hit contains."""
        if not hits:
            return hits
        bodies = [body_of(hit) for hit in hits]
        if found.vector is not None:
            best = best_sentences(found.query, found.vector, bodies, self.embedder)
        else:
            best = [best_sentence(snapshot.lexical.reader, found.query, body) for body in bodies]
        texts = [f"{hit.title} {hit.text}" for hit in hits]
        words = informative_words(snapshot, found.query, texts)
        return [
            replace(hit, best_sentence=sentence, matched_words=matched)
            for hit, sentence, matched in zip(hits, best, words, strict=True)
        ]


def _rankings(
    snapshot: Snapshot,
    queries: Sequence[str],
    vectors: NDArray[np.float32] | None,
    mask: RowMask | None,
    options: SearchOptions,
) -> list[Ranking]:
    """Rank documents for queries, given their vectors unless the search is lexical."""
    if vectors is None:
        return matching_documents(snapshot, queries, options.depth, mask)
    if options.mode == "dense":
        return nearest_documents(snapshot, vectors, options.depth, mask)
    depth = max(options.depth, options.fusion.depth)
    dense = nearest_documents(snapshot, vectors, depth, mask)
    both = zip(dense, matching_documents(snapshot, queries, depth, mask), strict=True)
    return [fuse(nearest, words, options.fusion).first(options.depth) for nearest, words in both]


def _score(hit: Hit) -> float:
    return hit.score


def _page(ranking: Ranking, options: SearchOptions) -> Ranking:
    """Cut a ranking as `SearchOptions.page` cuts hits."""
    kept = options.page(range(len(ranking)), lambda position: float(ranking.scores[position]))
    order = np.array(kept, np.int64)
    return ranking.take(order, ranking.scores[order])


def _scores(snapshot: Snapshot, rankings: Sequence[Ranking]) -> Iterator[dict[str, float]]:
    """Return the scores of each ranking by document id, best first; all ids are read at once."""
    doc_ids = iter(snapshot.doc_ids(np.concatenate([ranking.docs for ranking in rankings])))
    return (dict(zip(islice(doc_ids, len(r)), r.scores.tolist(), strict=True)) for r in rankings)
