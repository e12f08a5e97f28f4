"""One object that answers queries: embeds them, searches, reranks and dresses the hits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.errors import ConfigError, QueryError
from sbert_search.index.index import Index
from sbert_search.index.snapshot import Snapshot
from sbert_search.records import Document, Hit, Query, StageScore
from sbert_search.search.dense import Candidate, nearest_documents
from sbert_search.search.highlight import best_sentences

MODES = ("dense",)

_QUERIES_AT_ONCE = 256


class PairScorer(Protocol):
    """What the engine needs of a reranker; `Reranker` and a plain ``CrossEncoder`` have it."""

    def predict(self, pairs: list[tuple[str, str]], /) -> ArrayLike:
        """Score pairs of query and text, (n,); higher is better."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A query, its vector (dim,) and the candidates found for it, best first."""

    query: str
    vector: NDArray[np.float32]
    candidates: list[Candidate]


class SearchEngine:
    """Searches one index with the model that built it.

    Args:
        index: An open index, or its folder.
        embedder: An `Embedder` or a ``SentenceTransformer``; or a name or a folder, which is
            opened for the first query. None: the model that the index names.
        reranker: Scores pairs of query and passage again, for the first hits of every search.
        allow_inexact: Accept an engine or precision that moves vectors further than allowed.
        options: How to open a model by name: ``device``, ``engine``, ``precision``, ``quick``.

    Raises:
        IndexStoreError: The index cannot be opened, or is an unfinished build.
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
        self.index = index if isinstance(index, Index) else Index.open(index)
        self.index.require_finished()
        self.reranker = reranker
        self._model = embedder
        self._options = {"allow_inexact": allow_inexact, **options}
        if not (embedder is None or isinstance(embedder, (str, Path))):
            _ = self.embedder

    @cached_property
    def embedder(self) -> TextEmbedder:
        """The model, checked against the index."""
        return self.index.matching_embedder(self._model, **self._options)

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        mode: str = "dense",
        where: str | None = None,
        rerank_depth: int = 100,
        highlight: bool = False,
    ) -> list[Hit]:
        """Find the documents that answer a query.

        Args:
            query: What is asked.
            k: Documents wanted; all of them come back when it is above their number.
            mode: How candidates are found; ``dense``: by nearness of vectors.
            where: A filter over the metadata, such as ``year >= 2019 AND kind = 'class'``.
            rerank_depth: Candidates that the reranker sees, and at least k.
            highlight: Fill `Hit.best_sentence`.

        Returns:
            Hits, best first; equal scores in the order of their rows.

        Raises:
            QueryError: The query is blank, k is below 1, the filter or the mode is wrong, or the
                index holds no document.
        """
        hits = self.search_many(
            [query], k, mode=mode, where=where, rerank_depth=rerank_depth, highlight=highlight
        )
        return hits[0]

    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        mode: str = "dense",
        where: str | None = None,
        rerank_depth: int = 100,
        highlight: bool = False,
    ) -> list[list[Hit]]:
        """Answer several queries; arguments and errors as for `search`."""
        snapshot = self.index.state
        depth = max(k, rerank_depth) if self.reranker and k > 0 else k
        answers = []
        for found in self._find(snapshot, queries, depth, mode, where):
            hits = self._rerank(found.query, _hits(snapshot, found.candidates))[:k]
            answers.append(self._highlight(found, hits) if highlight else hits)
        return answers

    def run(
        self,
        queries: Sequence[Query],
        k: int = 100,
        *,
        mode: str = "dense",
        where: str | None = None,
        rerank_depth: int = 100,
    ) -> dict[str, dict[str, float]]:
        """Answer queries as a run: by query id, ids and scores of documents, best first.

        Texts are read only where a reranker needs them. Arguments and errors as for `search`.
        """
        texts = [query.text for query in queries]
        names = [query.query_id for query in queries]
        if self.reranker:
            many = self.search_many(texts, k, mode=mode, where=where, rerank_depth=rerank_depth)
            ranked = ({hit.doc_id: hit.score for hit in hits} for hits in many)
        else:
            snapshot = self.index.state
            every = self._find(snapshot, texts, k, mode, where)
            ranked = (_scores(snapshot, found.candidates) for found in every)
        return dict(zip(names, ranked, strict=True))

    def _find(
        self, snapshot: Snapshot, queries: Sequence[str], k: int, mode: str, where: str | None
    ) -> Iterator[_Found]:
        """Check what is asked, then find k candidates for each query, a block at a time."""
        if mode not in MODES:
            raise QueryError(f"There is no search mode {mode!r} yet; there is: {', '.join(MODES)}.")
        if k < 1:
            raise QueryError(f"k is {k}; ask for at least 1 hit.")
        if snapshot.n_docs == 0:
            raise QueryError(f"{snapshot.path} holds no documents; add some with `index add`.")
        _refuse_blank(queries)
        mask = None if where is None else snapshot.filter_mask(where)
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            block = queries[start : start + _QUERIES_AT_ONCE]
            vectors = self._embed(block)
            candidates = nearest_documents(snapshot, vectors, k, mask)
            yield from map(_Found, block, vectors, candidates)

    def _embed(self, queries: Sequence[str]) -> NDArray[np.float32]:
        vectors = self.embedder.encode_query(queries)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            query = queries[int(np.argmin(finite))]
            raise QueryError(f"The model gives a vector that is not finite for {query[:60]!r}.")
        return vectors

    def _rerank(self, query: str, hits: list[Hit]) -> list[Hit]:
        if self.reranker is None or not hits:
            return hits
        scores = np.asarray(self.reranker.predict([(query, _passage(hit)) for hit in hits]))
        if scores.shape != (len(hits),):
            raise ConfigError(
                f"The reranker gives {scores.size // len(hits)} scores for a pair; "
                "a search needs a model with one."
            )
        order = np.argsort(-scores, kind="stable")
        return [
            replace(
                hits[place],
                rank=rank,
                score=float(scores[place]),
                stages={**hits[place].stages, "rerank": StageScore(rank, float(scores[place]))},
            )
            for rank, place in enumerate(order.tolist(), 1)
        ]

    def _highlight(self, found: _Found, hits: list[Hit]) -> list[Hit]:
        bodies = [_body(hit) for hit in hits]
        best = best_sentences(found.query, found.vector, bodies, self.embedder) if hits else []
        return [replace(hit, best_sentence=text) for hit, text in zip(hits, best, strict=True)]


def _refuse_blank(queries: Sequence[str]) -> None:
    for number, query in enumerate(queries, 1):
        if not query.strip():
            which = "The query" if len(queries) == 1 else f"Query {number}"
            raise QueryError(f"{which} is empty; ask something.")


def _scores(snapshot: Snapshot, candidates: Sequence[Candidate]) -> dict[str, float]:
    rows = np.array([candidate.row for candidate in candidates], np.int64)
    scores = (candidate.score for candidate in candidates)
    return dict(zip(snapshot.doc_ids(rows), scores, strict=True))


def _hits(snapshot: Snapshot, candidates: Sequence[Candidate]) -> list[Hit]:
    """Read the documents of candidates."""
    passages = snapshot.fetch([candidate.row for candidate in candidates])
    return [
        Hit(
            rank=rank,
            doc_id=passage.document.doc_id,
            score=candidate.score,
            text=passage.document.text,
            title=passage.document.title,
            metadata=passage.document.metadata,
            row=candidate.row,
            passage=(passage.char_start, passage.char_end),
            stages={"dense": StageScore(rank, candidate.score)},
        )
        for rank, (candidate, passage) in enumerate(zip(candidates, passages, strict=True), 1)
    ]


def _passage(hit: Hit) -> str:
    """Return the text of the passage that made the hit, title included where it is part of it."""
    start, end = hit.passage
    return Document(hit.doc_id, hit.text, hit.title).full_text[start:end]


def _body(hit: Hit) -> str:
    """Return what that passage has of the document's text, or of its title when that is all."""
    offset = len(hit.title) + 1 if hit.title else 0
    start, end = (max(place - offset, 0) for place in hit.passage)
    return hit.text[start:end] or hit.title
