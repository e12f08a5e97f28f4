"""The first stages of a search: documents are found for each query by vectors, words or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.errors import QueryError
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.snapshot import Snapshot
from sbert_search.runtime.progress import warn
from sbert_search.search.dense import nearest_documents
from sbert_search.search.fusion import fuse
from sbert_search.search.lexical import matching_documents
from sbert_search.search.operators import Clause, ParsedQuery, parse_query
from sbert_search.search.options import SearchOptions
from sbert_search.search.queries import Asked
from sbert_search.search.ranking import Ranking
from sbert_search.search.word_filter import fill_up, word_mask

# Largest numbers of items that are in memory for the queries answered together.
HITS_AT_ONCE = 1 << 14  # hits with their texts
RESULTS_AT_ONCE = 1 << 17  # documents of which only id and score are kept
_QUERIES_AT_ONCE = 256
_PAIRS_AT_ONCE = 16_384  # pairs of query and text for a reranker


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The documents found for a query.

    Attributes:
        asked: The query as it was asked, "" for a vector.
        query: The query without its operators and the words that it excludes.
        vector: Its vector, (dim,), by the model; None in lexical search, and if it was given.
        ranking: The documents.
        n_before: Number of documents on earlier pages of the result.
    """

    asked: str
    query: str
    vector: NDArray[np.float32] | None
    ranking: Ranking
    n_before: int = 0


def query_blocks(
    snapshot: Snapshot, asked: Asked, options: SearchOptions, at_once: int
) -> Iterator[Asked]:
    """Yield queries in blocks that are answered together.

    Args:
        snapshot: State of the index to search.
        asked: The queries.
        options: The options of the search.
        at_once: Largest number of documents that are found for the queries of a block.

    Raises:
        QueryError: The index holds no document.
    """
    if snapshot.n_docs == 0:
        raise QueryError(
            f"{snapshot.path} holds no documents; add some with "
            f"`sbert-search index add {snapshot.path} SOURCE`."
        )
    depth = min(max(options.depth, options.fusion.depth), snapshot.n_docs)
    pairs = _PAIRS_AT_ONCE // max(1, options.rerank_depth)
    step = max(1, min(_QUERIES_AT_ONCE, pairs, at_once // depth))
    for start in range(0, len(asked), step):
        yield asked.part(start, start + step)


def retrieve(
    snapshot: Snapshot,
    asked: Asked,
    options: SearchOptions,
    embedder: Callable[[], TextEmbedder],
) -> list[Retrieved]:
    """Find the best ``options.depth`` documents for each query.

    Queries that demand the same words are ranked together.

    Args:
        snapshot: State of the index to search.
        asked: The queries.
        options: The options of the search, with a mode other than ``auto``.
        embedder: Returns the model; it is not called in lexical search, and if vectors are given.

    Raises:
        QueryError: The filter is wrong, or the model gives a vector that is not finite.
        NoLexicalData: The mode needs lexical data and the index was built without it.
    """
    parse = parse_query if options.syntax == "operators" else ParsedQuery
    parsed = list(map(parse, asked.texts))
    mask = None if options.where is None else snapshot.filter_mask(options.where)
    texts = [query.text for query in parsed]
    made = None
    if options.mode != "lexical" and asked.vectors is None:
        made = embed_queries(embedder(), texts)
    vectors = asked.vectors if made is None else made
    demands: dict[tuple[Clause, ...], list[int]] = {}
    for i, query in enumerate(parsed):
        demands.setdefault(query.clauses, []).append(i)
    found: dict[int, Retrieved] = {}
    for clauses, at in demands.items():
        admitted = word_mask(snapshot, clauses, mask) if clauses else mask
        some = None if vectors is None else vectors[at]
        rankings = _rankings(snapshot, [texts[i] for i in at], some, admitted, options)
        if admitted and options.mode == "lexical" and not all(c.excluded for c in clauses):
            rankings = [fill_up(snapshot, r, admitted, options.depth) for r in rankings]
        for i, ranking in zip(at, rankings, strict=True):
            vector = None if made is None else made[i]
            found[i] = Retrieved(asked.texts[i], texts[i], vector, ranking)
    return [found[i] for i in range(len(asked))]


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


def embed_queries(embedder: TextEmbedder, queries: Sequence[str]) -> NDArray[np.float32]:
    """Compute the vectors of queries, float32 (n, dim); note on stderr if queries are cut off.

    Raises:
        QueryError: A vector is not finite.
    """
    tokens = embedder.tokenize(queries, task="query")
    if tokens.lost.any():
        which = f"{np.count_nonzero(tokens.lost):,} of {len(queries):,} queries are"
        warn(
            f"{'The query is' if len(queries) == 1 else which} longer than the "
            f"{embedder.max_len:,} tokens the model reads; {tokens.lost.sum():,} tokens "
            "were cut off."
        )
    vectors = embedder.encode_tokens(tokens)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        query = queries[int(np.argmin(finite))]
        raise QueryError(f"The model gives a vector that is not finite for {query[:60]!r}.")
    return vectors
