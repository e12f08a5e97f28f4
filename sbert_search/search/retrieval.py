"""The first stages of a search: documents are found for each query by vectors, words or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import warn
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import QueryError
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.lexical.analyzer import NearWords
from sbert_search.index.snapshot import Snapshot
from sbert_search.search.candidates import (
    candidates_of,
    has_direction,
    lexical_ranking,
    matching_documents,
    matching_passages,
    nearest_documents,
    nearest_passages,
)
from sbert_search.search.fusion import (
    DEEPER,
    Candidates,
    Ranking,
    fuse,
    limit_beyond,
    whole_blocks,
)
from sbert_search.search.options import SearchOptions
from sbert_search.search.queries import CheckedQueries, Clause, ParsedQuery, parse_query

# Queries are answered in blocks. These are the largest numbers of items in memory for a block.
HITS_AT_ONCE = 1 << 14  # hits with their texts
RESULTS_AT_ONCE = 1 << 17  # documents of which only id and score are kept
_QUERIES_AT_ONCE = 256
_PAIRS_AT_ONCE = 16_384  # pairs of query and text for a reranker
# With ``group_by``: as long as fewer documents than this have been ranked, more members of all
# groups found are searched. After that, only the groups up to the requested page get more members.
_COMPLETED = 4096


class Retrieved(NamedTuple):
    """The documents found for a query."""

    asked: str  # as it was asked; "" for a vector
    query: str  # without its operators and the words that it excludes
    vector: NDArray[np.float32] | None  # (dim,); None in lexical search
    ranking: Ranking  # if a later stage reorders documents, only its candidates
    # Documents behind those of ``ranking``, which later stages do not reorder: those beyond the
    # candidates and, with ``group_by``, further members of the groups found and members of further
    # groups.
    others: Ranking | None = None
    n_before: int = 0  # number of documents on earlier pages
    near: NearWords | None = None  # None: not fuzzy, or dense and no word required
    required: tuple[Clause, ...] = ()  # words and phrases that every document found has


class _Search(NamedTuple):
    """A search for queries with the same clauses: words or phrases, required or excluded."""

    snapshot: Snapshot
    options: SearchOptions
    mask: RowMask | None  # None: all live rows
    near: NearWords | None  # None: the search is not fuzzy
    required: bool  # whether documents must have words

    def by_words(self, queries: Sequence[str], n: int) -> list[Ranking]:
        """Rank by BM25; then come documents of the mask that match by required stop words only."""
        found = matching_documents(self.snapshot, queries, n, self.mask, self.near)
        if self.mask is None or not self.required:
            return found
        from sbert_search.search.words import fill_up

        return [fill_up(self.snapshot, ranking, self.mask, n) for ranking in found]

    @property
    def needs_word(self) -> bool:
        """Whether hybrid search drops documents that have no word of the query."""
        return bool(self.options.sort) and not self.required

    def fused(self, candidates: Candidates) -> Ranking:
        """Rank all candidates that may be returned, from `SearchOptions.least` on."""
        ranking = fuse(candidates, self.options.fusion).above(self.options.least)
        if not self.needs_word:
            return ranking
        return ranking.take(np.flatnonzero(ranking.stages["lexical"][1]))


def query_blocks(
    snapshot: Snapshot, asked: CheckedQueries, options: SearchOptions, at_once: int
) -> Iterator[CheckedQueries]:
    """Yield queries in blocks, each of one query or of at most ``at_once`` documents in all."""
    grouped = options.group_size * (options.offset + options.k) if options.group_by else 0
    most = snapshot.n_docs if options.group else snapshot.n_rows
    depth = min(whole_blocks(options.depth, options.fusion.depth) + grouped, most)
    pairs = _PAIRS_AT_ONCE // max(1, options.rerank_depth)
    step = max(1, min(_QUERIES_AT_ONCE, pairs, at_once // max(1, depth)))
    for start in range(0, len(asked.texts), step):
        block = slice(start, start + step)
        vectors = None if asked.vectors is None else asked.vectors[block]
        yield CheckedQueries(asked.texts[block], vectors)


def retrieve(
    snapshot: Snapshot,
    asked: CheckedQueries,
    options: SearchOptions,
    embedder: Callable[[], TextEmbedder],
) -> list[Retrieved]:
    """Find the best ``options.depth`` documents for each query, the candidates and those behind.

    Queries with the same clauses are ranked together. The mode must not be ``auto``. ``embedder``
    is called neither in lexical search nor if vectors are given.
    """
    if options.group_by is not None:
        from sbert_search.search.facets import require_groups

        require_groups(snapshot, options.group_by)
    parse = parse_query if options.syntax == "operators" else ParsedQuery
    parsed = list(map(parse, asked.texts))
    mask = None if options.where is None else snapshot.filter_mask(options.where)
    texts = [query.text for query in parsed]
    vectors = asked.vectors
    if options.mode != "lexical" and vectors is None:
        vectors = embed_queries(embedder(), texts)
        _warn_of_zeros(snapshot, vectors, options.mode)
    demands: dict[tuple[Clause, ...], list[int]] = {}
    for i, query in enumerate(parsed):
        demands.setdefault(query.clauses, []).append(i)
    near = None
    if options.fuzzy:
        from sbert_search.search.words import near_words

        near = near_words(snapshot, options.fuzzy)
    found: dict[int, Retrieved] = {}
    for clauses, at in demands.items():
        admitted = mask
        if clauses:
            from sbert_search.search.words import word_mask

            admitted = word_mask(snapshot, clauses, mask, near)
        some = None if vectors is None else vectors[at]
        some_texts = [texts[i] for i in at]
        required = tuple(clause for clause in clauses if not clause.excluded)
        search = _Search(snapshot, options, admitted, near, bool(required))
        rankings = _rankings(search, some_texts, some, options.depth)
        others: list[Ranking | None] = [None] * len(at)
        if options.group_by is not None and not options.sort:
            each_vector = [None] * len(at) if some is None else np.split(some, len(at))
            by_query = zip(rankings, some_texts, each_vector, strict=True)
            others = [_for_groups(search, *each) for each in by_query]
        for i, ranking, more in zip(at, rankings, others, strict=True):
            vector = None if vectors is None else vectors[i]
            matched = near if required or options.mode != "dense" else None
            each = Retrieved(asked.texts[i], texts[i], vector, ranking, more, 0, matched, required)
            found[i] = _with_candidates(each, options)
    return [found[i] for i in range(len(parsed))]


def retrieve_similar(
    snapshot: Snapshot,
    vector: NDArray[np.float32],
    own: NDArray[np.int64],
    options: SearchOptions,
) -> Retrieved:
    """Find the ``options.depth`` documents nearest to a vector (dim,), but none of ``own`` (n,).

    With ``group_by``, the groups of ``own`` are left out, and there are groups up to the page.
    """
    from sbert_search.search.facets import groups_of, holds_groups

    column = options.group_by
    mask = None if options.where is None else snapshot.filter_mask(options.where)
    n, pages = options.depth + len(own), options.offset + options.k
    while True:
        (ranking,) = nearest_documents(snapshot, vector[None], n, mask)
        others = ranking.take(np.flatnonzero(~np.isin(ranking.docs, own)))
        done = column is None or bool(options.sort)
        if column is not None:
            of_others, of_own = (groups_of(snapshot, column, docs) for docs in (others.docs, own))
            others = others.take(np.flatnonzero(~np.isin(of_others, of_own)))
            size = options.group_size
            done = done or holds_groups(snapshot, column, others, mask, n_groups=pages, size=size)
        if len(ranking) < n or (done and len(others) >= options.depth):
            break
        n *= DEEPER
    others = others.first(options.candidates) if options.sort else others
    return _with_candidates(Retrieved("", "", vector, others), options)


def _with_candidates(found: Retrieved, options: SearchOptions) -> Retrieved:
    """Keep the candidates in the ranking; the other documents come before ``found.others``."""
    ranking, n = found.ranking, options.candidates
    if len(ranking) <= n:
        return found
    behind = ranking.take(np.arange(n, len(ranking)))
    others = behind if found.others is None else behind.followed_by(found.others)
    return found._replace(ranking=ranking.first(n), others=others)


def _rankings(
    search: _Search, queries: Sequence[str], vectors: NDArray[np.float32] | None, depth: int
) -> list[Ranking]:
    """Rank ``depth`` documents for each query, or passages if ``options.group`` is False.

    The vectors are (n_queries, dim); None: the search is lexical.
    """
    snapshot, options = search.snapshot, search.options
    if not options.group and snapshot.n_rows > snapshot.n_docs:
        return _passage_rankings(search, queries, vectors, depth)
    if vectors is None:
        return search.by_words(queries, depth)
    if options.mode == "dense":
        return nearest_documents(snapshot, vectors, depth, search.mask)
    return _fused(search, queries, vectors, depth)


def _fused(
    search: _Search, queries: Sequence[str], vectors: NDArray[np.float32], depth: int
) -> list[Ranking]:
    """Rank the candidates of both stages, and documents behind them.

    Documents below `SearchOptions.least` are left out.
    """
    snapshot, fusion, least = search.snapshot, search.options.fusion, search.options.least
    n, by_cosine = whole_blocks(depth, fusion.depth), snapshot.settings.metric == "cosine"
    found = candidates_of(snapshot, queries, vectors, n, search.mask, search.near)
    rankings = []
    for query, vector, each in zip(queries, vectors, found, strict=True):
        ranking, reached = search.fused(each), n
        # A document behind all that were found may still have a score of at least ``least``.
        while (
            least is not None
            and len(ranking) < depth
            and not (search.needs_word and np.count_nonzero(each.lexical_ranks) < reached)
            and limit_beyond(each, fusion, reached, by_cosine=by_cosine) >= least
        ):
            reached *= DEEPER
            (each,) = candidates_of(
                snapshot, [query], vector[None], reached, search.mask, search.near
            )
            ranking = search.fused(each)
        rankings.append(ranking.first(depth))
    return rankings


def _passage_rankings(
    search: _Search, queries: Sequence[str], vectors: NDArray[np.float32] | None, depth: int
) -> list[Ranking]:
    """Rank ``depth`` passages for each query; ``docs`` are their documents.

    With `SearchOptions.least`, only the candidates are ranked by words, since more of them would
    have to be read, whatever their scores.
    """
    snapshot, options = search.snapshot, search.options
    least, n = options.least, options.fusion.depth
    n_found = whole_blocks(depth, n) if least is None else n
    if vectors is None:
        found = search.by_words(queries, n_found)
        matched = matching_passages(snapshot, queries, depth, n, near=search.near, found=found)
        rankings = [lexical_ranking(each).above(least) for each in matched]
    elif options.mode == "dense":
        rankings = nearest_passages(snapshot, vectors, depth, search.mask)
    else:
        both = candidates_of(snapshot, queries, vectors, n_found, search.mask, search.near, depth=n)
        rankings = [search.fused(each).first(depth) for each in both]
    return [replace(ranking, docs=snapshot.doc_of(ranking.rows)) for ranking in rankings]


def _for_groups(
    search: _Search, ranking: Ranking, query: str, vector: NDArray[np.float32] | None
) -> Ranking:
    """Find documents to add to a ranking, until there are enough groups of enough documents each.

    They are further members of its groups, and members of further groups. A group has enough
    documents if it has ``options.group_size`` of them, or all that match. The groups on the pages
    up to the requested one always get enough documents. A later stage, such as reranking, may move
    any other group of the ranking to these pages, so the other groups get enough too, as long as
    fewer than `_COMPLETED` documents have been ranked.
    """
    from sbert_search.search.facets import groups_of, holds_groups, within_groups

    snapshot, options, mask = search.snapshot, search.options, search.mask
    column, size = options.group_by or "", options.group_size
    n_groups, depth, more = options.offset + options.k, options.depth, ranking
    n_docs = snapshot.n_docs if mask is None else mask.n_docs
    n_ranked = len(np.unique(groups_of(snapshot, column, ranking.docs)))
    while len(more) >= depth and depth < n_docs:
        n = max(n_groups, n_ranked) if depth < _COMPLETED else n_groups
        if holds_groups(snapshot, column, more, mask, n_groups=n, size=size):
            break
        depth *= DEEPER
        (more,) = _rankings(search, [query], vector, depth)
    kept = within_groups(groups_of(snapshot, column, more.docs), max(n_groups, n_ranked), size)
    return more.take(np.sort(kept[~np.isin(more.docs[kept], ranking.docs)]))


def embed_queries(embedder: TextEmbedder, queries: Sequence[str]) -> NDArray[np.float32]:
    """Compute the vectors of queries, float32 (n, dim); warn on stderr if queries are truncated."""
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


def _warn_of_zeros(snapshot: Snapshot, vectors: NDArray[np.float32], mode: str) -> None:
    """Say that queries find nothing by their vectors, without their texts, which may be private."""
    n = len(vectors) - np.count_nonzero(has_direction(snapshot, vectors))
    if not n:
        return
    which = "the query" if len(vectors) == 1 else f"{n:,} of {len(vectors):,} queries"
    then = "only words are compared"
    if mode == "dense":
        then = "dense search finds nothing"
        if snapshot.manifest.lexical is not None:
            then += "; the modes hybrid and lexical compare words"
    warn(f"The model knows no word of {which}: {then}.")
