"""Operations that search, find similar documents, count facets, and show indexes and documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from typing import TypeVar

import msgspec

from sbert_search.config import names_of
from sbert_search.declared import declared
from sbert_search.errors import QueryError
from sbert_search.index.upkeep.info import model_name, without_vectors
from sbert_search.records import Hit, MetadataValue
from sbert_search.search.facets import Facet
from sbert_search.search.options import Boost, Fusion, SearchOptions
from sbert_search.serve.access import ServerLimits
from sbert_search.serve.endpoint import AnyOperation, Call, Operation, Reply, wrong_field
from sbert_search.serve.indexes import ServedIndex
from sbert_search.serve.problems import Problem
from sbert_search.serve.queue import Work
from sbert_search.serve.routes.embedding import usage_of
from sbert_search.serve.search_schemas import (
    FACETS,
    FUSION,
    OPTIONS,
    SIMILAR,
    AskedFacet,
    AskedSearch,
    AskedSimilar,
    FacetCounts,
    FacetRange,
    FacetRequest,
    FacetResponse,
    FacetValue,
    IndexCard,
    IndexList,
    JsonScalar,
    JsonValue,
    SearchHit,
    SearchRequest,
    SearchResponse,
    SearchResult,
    SimilarRequest,
    SimilarResponse,
    StageRank,
    StageTimes,
    StoredDocument,
)
from sbert_search.serve.state import Served

T = TypeVar("T")


def hit_of(hit: Hit, *, highlight: bool = False, explain: bool = False) -> SearchHit:
    """Return a hit as its JSON shows it."""
    stages = {name: StageRank(rank=s.rank, score=s.score) for name, s in hit.stages.items()}
    return SearchHit(
        rank=hit.rank,
        id=hit.doc_id,
        score=hit.score,
        title=hit.title,
        text=hit.text,
        metadata=metadata_of(hit.metadata),
        chunk=hit.chunk,
        best_sentence=hit.best_sentence if highlight else None,
        matched_words=list(hit.matched_words) if highlight else None,
        stages=stages if explain else None,
    )


def card_of(served_index: ServedIndex, writable: bool) -> IndexCard:
    """Describe an index."""
    state = served_index.index.state
    migrating_to = model_name(state.manifest, state.manifest.pending)
    querying = served_index.querying
    return IndexCard(
        name=served_index.name,
        documents=state.n_docs,
        passages=state.n_rows,
        commit=state.manifest.generation,
        loaded_at=served_index.loaded_at,
        dim=state.settings.dim,
        metric=state.settings.metric,
        modes=served_index.modes,
        reranks=served_index.reranking is not None,
        model=None if served_index.model is None else served_index.model.name,
        query_model=None if querying is None else querying.name,
        columns={name: str(kind) for name, kind in state.columns.items()},
        writable=writable,
        reload_error=served_index.reload_error,
        migrating_to=migrating_to,
        migration_left=without_vectors(state) if migrating_to else 0,
    )


def times_of(work: Work) -> StageTimes:
    """Return the milliseconds of the stages of a request."""
    return StageTimes(
        tokenization=round(work.tokenization_s * 1e3, 3),
        queue=round(work.queue_s * 1e3, 3),
        inference=round(work.inference_s * 1e3, 3),
        search=round(work.search_s * 1e3, 3),
    )


def counts_of(facet: Facet) -> FacetCounts:
    """Return the counts of a column."""
    values = [FacetValue(value=_scalar(v), count=count) for v, count in facet.counts.items()]
    return FacetCounts(
        column=facet.column,
        values=values,
        other=facet.other,
        missing=facet.missing,
        low=None if facet.low is None else _scalar(facet.low),
        high=None if facet.high is None else _scalar(facet.high),
        ranges=[
            FacetRange(low=_scalar(one.low), high=_scalar(one.high), count=one.count)
            for one in facet.ranges
        ],
        total=facet.total,
    )


def metadata_of(metadata: Mapping[str, MetadataValue]) -> dict[str, JsonValue]:
    """Return metadata with dates and times as texts."""
    return {name: _json(value) for name, value in metadata.items()}


def _json(value: MetadataValue) -> JsonValue:
    if value is None:
        return None
    if isinstance(value, (str, int, float, bool, date, datetime)):
        return _scalar(value)
    return [_scalar(one) for one in value]


def _scalar(value: str | int | float | bool | date | datetime) -> JsonScalar:
    return value.isoformat() if isinstance(value, (date, datetime)) else value


_INDEX = {"index": "Name of the index; without it, the first one."}
_K = {"k": "Number of hits, 10 by default."}
_DEFAULT_HITS = 10
_RERANKED = 16_384  # pairs of a request that the reranker may have to score


async def search(served: Served, call: Call[AskedSearch]) -> Reply:
    """Search an index for one query or several, or list the documents that pass a filter."""
    return Reply(await answer_search(served, call.body, call.work))


async def search_by_address(served: Served, call: Call[None]) -> Reply:
    """Search an index for the query in the address, or list the documents that pass a filter."""
    asked = {"query" if name == "q" else name: value for name, value in call.query.items()}
    return Reply(await answer_search(served, _in_address(asked, SearchRequest), call.work))


async def answer_search(served: Served, body: AskedSearch, work: Work) -> SearchResponse:
    """Search an index."""
    served_index = served.index(body.index)
    queries = _queries(body, served.limits)
    options = _options(served_index, body, OPTIONS, served)
    served.require_filter(options.where)
    depth = options.rerank_depth
    if body.rerank and len(queries) * depth > _RERANKED:
        pairs = f"{len(queries):,} queries with {depth:,} documents to rerank for each"
        message = f"{pairs} are more than {_RERANKED:,} pairs. Send several requests."
        raise Problem(413, message, "rerank_depth")
    if not queries and (body.rerank or body.highlight or body.passages):
        raise Problem(400, "rerank, highlight and passages need a query.", "query")
    with _named_field(partial(_field_with_column, options)):
        answers = await served_index.search(
            queries, options, work, reranks=body.rerank, highlight=body.highlight
        )
    facets: Mapping[str, Facet] = {}
    total, suggestion = None, None
    with work.searching():
        if body.facets:
            with _named_field(lambda _: "facets"):
                text = queries[0] if queries else None
                facets = await served_index.facets(text, body.facets, options, body.facet_values)
        if body.queries is None:
            total, suggestion = await served_index.about(body.query, options)
    results = [
        SearchResult(
            query=query,
            mode=hits.mode,
            commit=hits.commit,
            missing_shards=list(hits.missing),
            hits=[hit_of(hit, highlight=body.highlight, explain=body.explain) for hit in hits],
            total=total,
            suggestion=suggestion,
        )
        for query, hits in zip(queries or [""], answers, strict=True)
    ]
    for one in results if queries else ():
        best = max((hit.score for hit in one.hits), default=None)
        found = {"index": served_index.name, "query": one.query, "hits": len(one.hits)}
        about = {"total": total, "best_score": best, "suggestion": suggestion}
        work.found.append({**found, **about})
    return SearchResponse(
        index=served_index.name,
        results=results,
        facets=[counts_of(facet) for facet in facets.values()],
        usage=usage_of(work),
        took_ms=times_of(work),
    )


async def count_facets(served: Served, call: Call[AskedFacet]) -> Reply:
    """Count the values of columns among the documents that match."""
    body = call.body
    served_index = served.index(body.index)
    if not body.columns:
        raise Problem(400, "There is no column in the list.", "columns")
    if body.query is not None:
        _check_query(body.query, "query", served.limits)
    named = {name: value for name in FACETS if (value := getattr(body, name)) is not None}
    options = served.defaults.with_keywords(None, **named)
    served.require_filter(options.where)
    with _named_field(lambda _: "columns"):
        facets = await served_index.facets(body.query, body.columns, options, body.n)
    counts = [counts_of(facet) for facet in facets.values()]
    return Reply(FacetResponse(index=served_index.name, facets=counts))


async def list_indexes(served: Served, call: Call[None]) -> Reply:
    """Describe the indexes of the server."""
    cards = [card_of(one, served.writable) for one in served.indexes.values()]
    return Reply(IndexList(indexes=cards, max_k=served.limits.k, mode=served.defaults.mode))


async def get_document(served: Served, call: Call[None]) -> Reply:
    """Read a document."""
    return Reply(await answer_document(served, call.query.get("index", ""), call.path["id"]))


async def answer_document(served: Served, index: str, doc_id: str) -> StoredDocument:
    """Read a document of an index."""
    served_index = served.index(index)
    document = await served_index.document(doc_id)
    return StoredDocument(
        index=served_index.name,
        id=document.doc_id,
        title=document.title,
        text=document.text,
        metadata=metadata_of(document.metadata),
    )


async def similar(served: Served, call: Call[None]) -> Reply:
    """Find the documents that resemble a document most."""
    request = _in_address({**call.query, "like": [call.path["id"]]}, SimilarRequest)
    return Reply(await answer_similar(served, request, call.work))


async def similar_to_several(served: Served, call: Call[AskedSimilar]) -> Reply:
    """Find the documents that resemble documents most, with the options of a search."""
    return Reply(await answer_similar(served, call.body, call.work))


async def answer_similar(served: Served, body: AskedSimilar, work: Work) -> SimilarResponse:
    """Find the documents of an index that resemble some of them most."""
    served_index, n_examples = served.index(body.index), len(body.like) + len(body.unlike)
    if not body.like or n_examples > served.limits.items:
        problem = f"{n_examples:,} documents; name from 1 to {served.limits.items:,}."
        raise Problem(400, problem, "like")
    options = _options(served_index, body, SIMILAR, served)
    served.require_filter(options.where)
    with _named_field(partial(_field_with_column, options)):
        hits = await served_index.similar(body.like, body.unlike, options, work)
    return SimilarResponse(
        index=served_index.name,
        id=body.like[0],
        commit=hits.commit,
        missing_shards=list(hits.missing),
        hits=[hit_of(hit) for hit in hits],
    )


@contextmanager
def _named_field(field_of: Callable[[str], str]) -> Iterator[None]:
    """Name the wrong field in a problem that names none, by its message."""
    try:
        yield
    except Problem as problem:
        if problem.status == 400:
            problem.param = problem.param or field_of(problem.message)
        raise


def _field_with_column(options: SearchOptions, message: str) -> str:
    """Return the field of a search that has a column which a message quotes; "": none."""
    columns: Mapping[str, Sequence[str]] = {
        "boost": [boost.column for boost in options.boosts],
        "sort": [name.removeprefix("-") for name in names_of(options.sort or ())],
        "group_by": names_of([options.group_by or ""]),
        "fields": names_of(options.fields or ()),
    }
    quoted = message.partition(";")[0]  # what follows are names to choose from
    found = (name for name, of in columns.items() if any(repr(one) in quoted for one in of))
    return next(found, "")


def _boost(text: str) -> Boost:
    try:
        return Boost.parse(text)
    except QueryError as error:
        raise Problem(400, str(error), "boost") from error


def _in_address(asked: Mapping[str, object], kind: type[T]) -> T:
    """Read a request whose numbers and booleans are texts."""
    try:
        return msgspec.convert(asked, kind, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_field(error, kind) from error


def _queries(body: AskedSearch, limits: ServerLimits) -> list[str]:
    if body.query is not None and body.queries is not None:
        raise Problem(400, "Send either query or queries.", "query")
    if body.query is None and body.queries is None:
        return []
    queries = [body.query] if body.query is not None else body.queries or []
    param = "query" if body.query is not None else "queries"
    if not 0 < len(queries) <= limits.items:
        raise Problem(400, f"{len(queries):,} queries; send from 1 to {limits.items:,}.", param)
    for query in queries:
        _check_query(query, param, limits)
    if body.facets and len(queries) > 1:
        raise Problem(400, "Facets are counted for one query.", "facets")
    return queries


def _check_query(query: str, param: str, limits: ServerLimits) -> None:
    if not query.strip():
        raise Problem(400, "The query is empty; ask something.", param)
    if len(query) > limits.query_chars:
        raise Problem(413, f"A query may have at most {limits.query_chars:,} characters.", param)


def _options(
    served_index: ServedIndex,
    body: AskedSearch | AskedSimilar,
    names: Sequence[str],
    served: Served,
) -> SearchOptions:
    """Make the options of a request, with those that its fields ``names`` hold, within limits."""
    limits = served.limits
    k = min(_DEFAULT_HITS, limits.k) if body.k is None else body.k
    named = {name: value for name in names if (value := getattr(body, name)) is not None}
    with served_index.plain_errors():
        if isinstance(body, AskedSearch):
            named["group"] = not body.passages
            if body.passages and "group_by" in named:
                message = "group_by groups documents, not passages; leave out one of the two."
                raise Problem(400, message, "group_by")
            if body.fusion is not None:
                given = {name: getattr(body.fusion, name) for name in FUSION}
                given = {name: value for name, value in given.items() if value is not None}
                named["fusion"] = replace(served.defaults.fusion, **given)
        else:
            named["rerank_depth"] = 0
        boosts = [_boost(text) for text in body.boost]
        options = served.defaults.with_keywords(k, boost=boosts, **named)
    n_hits = options.offset + k
    if n_hits > limits.k:
        raise Problem(400, f"offset + k is {n_hits:,}; it may be at most {limits.k:,}.", "k")
    if options.rerank_depth > limits.rerank_depth:
        raise Problem(400, f"It is above {limits.rerank_depth:,}.", "rerank_depth")
    if options.group_by and n_hits * options.group_size > limits.k:
        problem = f"{n_hits * options.group_size:,}; it may be at most {limits.k:,}."
        raise Problem(400, f"(offset + k) * group_size is {problem}", "group_size")
    most = max(limits.k, Fusion().depth)
    if options.fusion.depth > most:
        raise Problem(400, f"It is above {most:,}.", "fusion.depth")
    return options


OPERATIONS: tuple[AnyOperation, ...] = (
    Operation("POST", "/search", search, SearchResponse, SearchRequest),
    Operation(
        "GET",
        "/search",
        search_by_address,
        SearchResponse,
        parameters={
            "q": "The query; without it, the documents of where are listed.",
            **_INDEX,
            **_K,
            **{name: declared(SearchOptions)[name].help for name in OPTIONS},
        },
        problems=(404, 413),
    ),
    Operation("POST", "/facets", count_facets, FacetResponse, FacetRequest),
    Operation("GET", "/indexes", list_indexes, IndexList),
    Operation("POST", "/similar", similar_to_several, SimilarResponse, SimilarRequest),
    Operation(
        "GET",
        "/documents/{id:path}/similar",
        similar,
        SimilarResponse,
        parameters={
            **_INDEX,
            **_K,
            **{name: declared(SearchOptions)[name].help for name in SIMILAR},
            "group_by": "Column of which each value has one hit, and no value of the document.",
        },
        problems=(404, 413),
    ),
    Operation(
        "GET",
        "/documents/{id:path}",
        get_document,
        StoredDocument,
        parameters=_INDEX,
        problems=(404,),
    ),
)
