"""One object that answers queries: embeds them, searches, fuses, reranks and dresses the hits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.errors import ConfigError, QueryError
from sbert_search.index.index import Index
from sbert_search.index.snapshot import Snapshot
from sbert_search.records import Hit, Query
from sbert_search.runtime import memory
from sbert_search.runtime.cores import usable_cores
from sbert_search.runtime.progress import note
from sbert_search.runtime.turns import Turns
from sbert_search.search.dense import nearest_documents
from sbert_search.search.fusion import Fusion, fuse
from sbert_search.search.highlight import best_sentences
from sbert_search.search.hits import body_of, read_hits
from sbert_search.search.lexical import (
    best_passages,
    best_sentence,
    matching_documents,
    telling_words,
)
from sbert_search.search.options import Ask, refuse_no_text
from sbert_search.search.ranking import Ranking
from sbert_search.search.rerank import PairScorer, rerank

_QUERIES_AT_ONCE = 256

_HITS_AT_ONCE = 1 << 14  # hits, with their texts, of the queries answered together
_RESULTS_AT_ONCE = 1 << 17  # ids and scores that are held for the queries answered together
WORK_BYTES = 128 << 20  # of a search: blocks of vectors, scores, candidates; beside the texts found
_PAIRS_AT_ONCE = 16_384  # pairs of query and text whose texts are in memory for a reranker


@dataclass(frozen=True, slots=True)
class _Found:
    """A query, its vector (dim,) if there is one, and what was found."""

    query: str
    vector: NDArray[np.float32] | None
    ranking: Ranking


class SearchEngine:
    """Searches one index with the model that built it.

    It sees what its `Index` object sees: updates made through that object at once, those of other
    processes and of other objects after `refresh`. Threads may share one engine; as many search at
    once as there are cores, and the others wait in the order they came. A batch of queries is
    answered in blocks of up to 256, between which others have their turn.

    Args:
        index: An open index, which the engine shares; or a folder, which it opens for itself.
        embedder: An `Embedder` or a ``SentenceTransformer``; or a name or a folder, which is
            opened for the first query. None: the model that the index names.
        reranker: Scores pairs of query and passage again, for the first hits of every search.
        allow_inexact: Accept an engine or precision that moves vectors further than allowed.
        options: How to open a model by name: ``device``, ``engine``, ``precision``, ``quick``.

    Raises:
        IndexStoreError: The index cannot be opened, or is an unfinished build.
        ConfigError: The reranker is none.
        ModelMismatch: The embedder is not the model that built the index; of a model by name, the
            first query says so.
    """

    def __init__(
        self,
        index: Index | str | Path,
        embedder: Any = None,
        reranker: PairScorer | None = None,
        *,
        allow_inexact: bool = False,
        **options: Any,
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
        self._turns = Turns(usable_cores())  # more at once would only wait for each other
        self._memory_bytes: int | None = None
        self._options = {"allow_inexact": allow_inexact, **options}
        if not (embedder is None or isinstance(embedder, (str, Path))):
            _ = self.embedder

    def __reduce__(self) -> tuple[Callable[..., SearchEngine], tuple[Any, ...]]:
        """Pickle what it was made of: another process opens the index and the model itself."""
        return partial(SearchEngine, **self._options), (self.index, self._model, self.reranker)

    @cached_property
    def embedder(self) -> TextEmbedder:
        """The model, checked against the index."""
        return self.index.matching_embedder(self._model, **self._options)

    def refresh(self) -> bool:
        """Move to the newest committed state of the index; as `Index.refresh`."""
        return self.index.refresh()

    def require_memory(self, memory_bytes: int | None) -> None:
        """Refuse a budget for this process that its model and a search do not keep within.

        Raises:
            ConfigError: With what is left of it.
        """
        self._memory_bytes = memory_bytes
        if memory_bytes is not None:
            memory.give_back_freed(memory_bytes)
            memory.require(memory_bytes, WORK_BYTES + memory_bytes // 8, "A search")
            _ = self.embedder
            memory.require(memory_bytes, WORK_BYTES + memory_bytes // 8, "A search")

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        mode: str = "dense",
        where: str | None = None,
        fusion: Fusion | None = None,
        rerank_depth: int = 100,
        highlight: bool = False,
    ) -> list[Hit]:
        """Find the documents that answer a query.

        Args:
            query: What is asked.
            k: Documents wanted; all of them come back when it is above their number.
            mode: How documents are found; ``dense``: by nearness of vectors; ``lexical``: by their
                words, without the model; ``hybrid``: by both.
            where: A filter over the metadata, such as ``year >= 2019 AND kind = 'class'``.
            fusion: How the two rankings of ``hybrid`` become one; None: the defaults of `Fusion`.
            rerank_depth: Documents that the reranker sees, and at least k.
            highlight: Fill `Hit.best_sentence` and `Hit.matched_words`.

        Returns:
            Hits, best first; equal scores in the order of their rows.

        Raises:
            QueryError: The query is blank or no text, k is below 1, the reranker would see too many
                documents, the filter or the mode is wrong, the index holds no document, or a model
                gives numbers that are not finite.
            NoLexicalData: The mode needs lexical data and the index was made without.
        """
        return self.search_many(
            [query],
            k,
            mode=mode,
            where=where,
            fusion=fusion,
            rerank_depth=rerank_depth,
            highlight=highlight,
        )[0]

    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        mode: str = "dense",
        where: str | None = None,
        fusion: Fusion | None = None,
        rerank_depth: int = 100,
        highlight: bool = False,
    ) -> list[list[Hit]]:
        """Answer several queries; arguments and errors as for `search`."""
        ask = self._asked(k, mode, where, fusion, rerank_depth)
        return list(self._answers(queries, ask, highlight))

    def answers(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        mode: str = "dense",
        where: str | None = None,
        fusion: Fusion | None = None,
        rerank_depth: int = 100,
    ) -> Iterator[list[Hit]]:
        """Answer queries one after the other, few in memory; otherwise as `search_many`."""
        return self._answers(queries, self._asked(k, mode, where, fusion, rerank_depth), False)

    def _answers(self, queries: Sequence[str], ask: Ask, highlight: bool) -> Iterator[list[Hit]]:
        snapshot = self.index.state
        for texts in self._blocks(snapshot, queries, ask, _HITS_AT_ONCE):
            with self._turns:
                block = self._find(snapshot, texts, ask)
            for part in self._in_room(snapshot, block, ask):
                with self._turns:
                    read = zip(part, self._read(snapshot, part, ask), strict=True)
                    answers = [
                        self._highlight(snapshot, found, hits[: ask.k])
                        if highlight
                        else hits[: ask.k]
                        for found, hits in read
                    ]
                yield from answers

    def run(
        self,
        queries: Sequence[Query],
        k: int = 100,
        *,
        mode: str = "dense",
        where: str | None = None,
        fusion: Fusion | None = None,
        rerank_depth: int = 100,
    ) -> dict[str, dict[str, float]]:
        """Answer queries as a run: by query id, ids and scores of documents, best first.

        Texts are read only where a reranker needs them. Arguments and errors as for `search`.
        """
        many = self.rankings(
            queries, k, mode=mode, where=where, fusion=fusion, rerank_depth=rerank_depth
        )
        return dict(many)

    def rankings(
        self,
        queries: Sequence[Query],
        k: int = 100,
        *,
        mode: str = "dense",
        where: str | None = None,
        fusion: Fusion | None = None,
        rerank_depth: int = 100,
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Answer queries one after the other, few in memory, each by its id; otherwise as `run`."""
        ask = self._asked(k, mode, where, fusion, rerank_depth)
        ranked = self._ranked([query.text for query in queries], ask)
        return zip((query.query_id for query in queries), ranked, strict=True)

    def _ranked(self, queries: Sequence[str], ask: Ask) -> Iterator[dict[str, float]]:
        snapshot = self.index.state
        for texts in self._blocks(snapshot, queries, ask, _RESULTS_AT_ONCE):
            with self._turns:
                block = self._find(snapshot, texts, ask)
                firsts = [found.ranking.first(ask.k) for found in block]
                scores = None if self.reranker else list(_scores(snapshot, firsts))
            if scores is not None:
                yield from scores
                continue
            for part in self._in_room(snapshot, block, ask):
                with self._turns:
                    read = self._read(snapshot, part, ask)
                yield from ({hit.doc_id: hit.score for hit in hits[: ask.k]} for hits in read)

    def _asked(
        self, k: int, mode: str, where: str | None, fusion: Fusion | None, rerank_depth: int
    ) -> Ask:
        if self.reranker and rerank_depth < 1:
            raise QueryError(f"rerank_depth is {rerank_depth}; it must be at least 1.")
        return Ask(k, mode, where, fusion or Fusion(), rerank_depth if self.reranker else 0)

    def _blocks(
        self, snapshot: Snapshot, queries: Sequence[str], ask: Ask, at_once: int
    ) -> Iterator[Sequence[str]]:
        """Check what is asked, then yield the queries that are answered together."""
        if snapshot.n_docs == 0:
            raise QueryError(
                f"{snapshot.path} holds no documents; add some with "
                f"`sbert-search index add {snapshot.path} SOURCE`."
            )
        refuse_no_text(queries)
        depth = min(max(ask.depth, ask.fusion.depth), snapshot.n_docs)
        pairs = _PAIRS_AT_ONCE // max(1, ask.rerank_depth)
        step = max(1, min(_QUERIES_AT_ONCE, pairs, at_once // depth))
        for start in range(0, len(queries), step):
            yield queries[start : start + step]

    def _find(self, snapshot: Snapshot, queries: Sequence[str], ask: Ask) -> list[_Found]:
        """Find documents for each query."""
        mask = None if ask.where is None else snapshot.filter_mask(ask.where)
        depth = max(ask.depth, ask.fusion.depth) if ask.mode == "hybrid" else ask.depth
        if ask.mode != "dense":
            lexical = matching_documents(snapshot, queries, depth, mask)
        if ask.mode == "lexical":
            return [_Found(q, None, r) for q, r in zip(queries, lexical, strict=True)]
        vectors = self._embed(queries)
        rankings = nearest_documents(snapshot, vectors, depth, mask)
        if ask.mode == "hybrid":
            both = zip(rankings, lexical, strict=True)
            rankings = [fuse(dense, words, ask.fusion).first(ask.depth) for dense, words in both]
        return list(map(_Found, queries, vectors, rankings))

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

    def _in_room(
        self, snapshot: Snapshot, block: Sequence[_Found], ask: Ask
    ) -> Iterator[Sequence[_Found]]:
        """Cut a block where the texts of its hits would take too much of a budget.

        Raises:
            ConfigError: Those of a single query do.
        """
        budget = self._memory_bytes
        if budget is None:
            yield block
            return
        part: list[_Found] = []
        taken, allowed = 0, budget // 32
        for found in block:
            n_bytes = snapshot.bytes_of(found.ranking.first(ask.depth).docs)
            if n_bytes > allowed:
                raise ConfigError(
                    f"The documents found for {found.query[:60]!r} take {memory.mib(n_bytes)}, and "
                    f"{memory.mib(allowed)} of --memory are for them; allow more, or ask for fewer "
                    "with -k."
                )
            if part and taken + n_bytes > allowed:
                yield part
                part, taken = [], 0
            part.append(found)
            taken += n_bytes
        yield part

    def _read(self, snapshot: Snapshot, block: Sequence[_Found], ask: Ask) -> list[list[Hit]]:
        """Read the documents found for each query, in their final order."""
        read = []
        for found in block:
            ranking = found.ranking.first(ask.depth)
            read.append(read_hits(snapshot, best_passages(snapshot, found.query, ranking)))
        if self.reranker is None:
            return read
        queries = [found.query for found in block]
        return rerank(self.reranker, queries, read, ask.fusion.rerank_weight)

    def _highlight(self, snapshot: Snapshot, found: _Found, hits: list[Hit]) -> list[Hit]:
        """Say of each hit which sentence to show and which words of the query it holds."""
        if not hits:
            return hits
        bodies = [body_of(hit) for hit in hits]
        if found.vector is not None:
            best = best_sentences(found.query, found.vector, bodies, self.embedder)
        else:
            best = [best_sentence(snapshot.lexical.reader, found.query, body) for body in bodies]
        texts = [f"{hit.title} {hit.text}" for hit in hits]
        words = telling_words(snapshot, found.query, texts)
        return [
            replace(hit, best_sentence=sentence, matched_words=matched)
            for hit, sentence, matched in zip(hits, best, words, strict=True)
        ]


def _scores(snapshot: Snapshot, rankings: Sequence[Ranking]) -> Iterator[dict[str, float]]:
    """Yield ids and scores of documents of each ranking, best first; all ids are read at once."""
    doc_ids = iter(snapshot.doc_ids(np.concatenate([ranking.docs for ranking in rankings])))
    return (dict(zip(islice(doc_ids, len(r)), r.scores.tolist(), strict=True)) for r in rankings)
