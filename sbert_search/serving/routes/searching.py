"""Search, similar documents, and the indexes and documents themselves."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime

from sbert_search.records import Hit, MetadataValue
from sbert_search.search.options import SearchOptions
from sbert_search.search.stages.facets import Facet
from sbert_search.search.stages.fusion import Fusion
from sbert_search.serving.endpoint import AnyOperation, Call, Operation, Reply
from sbert_search.serving.indexes import ServedIndex
from sbert_search.serving.limits import ServerLimits
from sbert_search.serving.models.work import Work
from sbert_search.serving.problems import Problem, invalid
from sbert_search.serving.routes.embedding import usage_of
from sbert_search.serving.schemas.fields import JsonScalar, JsonValue
from sbert_search.serving.schemas.search import (
    FacetCounts,
    FacetRange,
    FacetRequest,
    FacetResponse,
    FacetValue,
    FusionSettings,
    IndexCard,
    IndexList,
    SearchHit,
    SearchRequest,
    SearchResponse,
    SearchResult,
    SimilarResponse,
    StageRank,
    StageTimes,
    StoredDocument,
)
from sbert_search.serving.state import Served

_INDEX = {"index": "Name of the index; without it, the first one."}
_DEFAULT_HITS = 10


async def search(served: Served, call: Call[SearchRequest]) -> Reply:
    """Answer one query or several."""
    body, work = call.body, call.work
    served_index = served.index(body.index)
    queries = _queries(body, served.limits, served.limits.items)
    options = _options(served_index, body, served.limits)
    answers = await served_index.search(
        queries, options, work, reranks=body.rerank, highlight=body.highlight
    )
    facets: Mapping[str, Facet] = {}
    if body.facets:
        facets = await served_index.facets(
            queries[0], body.facets, options.mode, body.where, body.syntax, body.fuzzy
        )
    results = [
        SearchResult(
            query=query,
            mode=hits.mode,
            commit=hits.commit,
            hits=[hit_of(hit, highlight=body.highlight, explain=body.explain) for hit in hits],
        )
        for query, hits in zip(queries, answers, strict=True)
    ]
    return Reply(
        SearchResponse(
            index=served_index.name,
            results=results,
            facets=[_counts(facet) for facet in facets.values()],
            usage=usage_of(work),
            took_ms=_times(work),
        )
    )


async def count_facets(served: Served, call: Call[FacetRequest]) -> Reply:
    """Count the values of columns, without a search."""
    body = call.body
    served_index = served.index(body.index)
    served.require_items(len(body.columns), "columns")
    if body.query is not None:
        _check_query(body.query, "query", served.limits)
    _check_filter(body.where, served.limits)
    facets = await served_index.facets(
        body.query, body.columns, body.mode, body.where, body.syntax, body.fuzzy, body.n
    )
    return Reply(
        FacetResponse(index=served_index.name, facets=[_counts(facet) for facet in facets.values()])
    )


async def list_indexes(served: Served, call: Call[None]) -> Reply:
    """Describe the indexes of the server."""
    return Reply(
        IndexList(indexes=[_card(one, served.writable) for one in served.indexes.values()])
    )


async def get_document(served: Served, call: Call[None]) -> Reply:
    """Read a document by its id."""
    served_index = served.index(call.query.get("index", ""))
    document = await served_index.document(call.path["id"])
    return Reply(
        StoredDocument(
            index=served_index.name,
            id=document.doc_id,
            title=document.title,
            text=document.text,
            metadata=_metadata(document.metadata),
        )
    )


async def similar(served: Served, call: Call[None]) -> Reply:
    """Find the documents that resemble a document most."""
    served_index = served.index(call.query.get("index", ""))
    k = _number(call.query.get("k", str(_DEFAULT_HITS)), "k", served.limits.k)
    where = call.query.get("where")
    _check_filter(where, served.limits)
    doc_id = call.path["id"]
    hits = await served_index.similar(doc_id, k, where, call.work)
    return Reply(
        SimilarResponse(
            index=served_index.name,
            id=doc_id,
            commit=hits.commit,
            hits=[hit_of(hit) for hit in hits],
        )
    )


def hit_of(hit: Hit, *, highlight: bool = False, explain: bool = False) -> SearchHit:
    """Return a hit as its JSON shows it."""
    stages = {name: StageRank(rank=s.rank, score=s.score) for name, s in hit.stages.items()}
    return SearchHit(
        rank=hit.rank,
        id=hit.doc_id,
        score=hit.score,
        title=hit.title,
        text=hit.text,
        metadata=_metadata(hit.metadata),
        chunk=hit.chunk,
        best_sentence=hit.best_sentence if highlight else None,
        matched_words=list(hit.matched_words) if highlight else None,
        stages=stages if explain else None,
    )


def _queries(body: SearchRequest, limits: ServerLimits, most: int) -> list[str]:
    if (body.query is None) == (body.queries is None):
        raise invalid("query", "Send either query or queries.")
    queries = [body.query] if body.query is not None else body.queries or []
    param = "query" if body.query is not None else "queries"
    if not 0 < len(queries) <= most:
        raise invalid(param, f"{len(queries):,} queries; send from 1 to {most:,}.")
    for query in queries:
        _check_query(query, param, limits)
    if body.facets and len(queries) > 1:
        raise invalid("facets", "Facets are counted for one query.")
    return queries


def _check_query(query: str, param: str, limits: ServerLimits) -> None:
    if not query.strip():
        raise invalid(param, "The query is empty; ask something.")
    if len(query) > limits.query_chars:
        raise Problem(413, f"A query may have {limits.query_chars:,} characters.", param)


def _options(served_index: ServedIndex, body: SearchRequest, limits: ServerLimits) -> SearchOptions:
    _check_filter(body.where, limits)
    if body.offset + body.k > limits.k:
        raise invalid("k", f"offset + k is {body.offset + body.k:,}; it may be {limits.k:,}.")
    if body.rerank_depth > limits.rerank_depth:
        raise invalid("rerank_depth", f"It is above {limits.rerank_depth:,}.")
    if body.group_size > limits.k:
        raise invalid("group_size", f"It is above {limits.k:,}.")
    fusion = body.fusion or FusionSettings()
    if fusion.depth > limits.k:
        raise invalid("fusion.depth", f"It is above {limits.k:,}.")
    with served_index.plain_errors():
        return SearchOptions(
            k=body.k,
            mode=body.mode,
            where=body.where,
            fusion=Fusion(
                method=fusion.method,
                dense_weight=fusion.dense_weight,
                depth=fusion.depth,
                rrf_k=fusion.rrf_k,
                rerank_weight=fusion.rerank_weight,
            ),
            rerank_depth=body.rerank_depth,
            offset=body.offset,
            min_score=body.min_score,
            syntax=body.syntax,
            diversity=body.diversity,
            group_by=body.group_by,
            group_size=body.group_size,
            group=not body.passages,
            full_text=body.full_text,
            fuzzy=body.fuzzy,
        )


def _check_filter(where: str | None, limits: ServerLimits) -> None:
    if where is not None and len(where) > limits.filter_chars:
        raise Problem(413, f"A filter may have {limits.filter_chars:,} characters.", "where")


def _number(text: str, param: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= most):
        raise invalid(param, f"{text!r:.50} is no number from 1 to {most:,}.")
    return int(text)


def _card(served_index: ServedIndex, writable: bool) -> IndexCard:
    state = served_index.index.state
    modes = ["dense"] if served_index.model is not None else []
    modes += ["lexical"] if state.settings.lexical is not None else []
    return IndexCard(
        name=served_index.name,
        documents=state.n_docs,
        passages=state.n_rows,
        commit=state.manifest.generation,
        loaded_at=served_index.loaded_at,
        dim=state.settings.dim,
        metric=state.settings.metric,
        modes=[*modes, "hybrid"] if len(modes) == 2 else modes,
        reranks=served_index.reranking is not None,
        model=None if served_index.model is None else served_index.model.name,
        columns={name: str(kind) for name, kind in state.columns.items()},
        writable=writable,
        reload_error=served_index.reload_error,
    )


def _times(work: Work) -> StageTimes:
    return StageTimes(
        tokenization=round(work.tokenization_s * 1e3, 3),
        queue=round(work.queue_s * 1e3, 3),
        inference=round(work.inference_s * 1e3, 3),
        search=round(work.search_s * 1e3, 3),
    )


def _counts(facet: Facet) -> FacetCounts:
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
    )


def _metadata(metadata: Mapping[str, MetadataValue]) -> dict[str, JsonValue]:
    return {name: _json(value) for name, value in metadata.items()}


def _json(value: MetadataValue) -> JsonValue:
    if value is None:
        return None
    if isinstance(value, (str, int, float, bool, date, datetime)):
        return _scalar(value)
    return [_scalar(one) for one in value]


def _scalar(value: str | int | float | bool | date | datetime) -> JsonScalar:
    return value.isoformat() if isinstance(value, (date, datetime)) else value


OPERATIONS: tuple[AnyOperation, ...] = (
    Operation(
        method="POST",
        path="/search",
        summary="Search an index for one query or several.",
        answer=search,
        request=SearchRequest,
        response=SearchResponse,
        problems=(404,),
    ),
    Operation(
        method="POST",
        path="/facets",
        summary="Count the values of columns among the documents that match.",
        answer=count_facets,
        request=FacetRequest,
        response=FacetResponse,
        problems=(404,),
    ),
    Operation(
        method="GET",
        path="/indexes",
        summary="Describe the indexes of the server.",
        answer=list_indexes,
        response=IndexList,
    ),
    Operation(
        method="GET",
        path="/documents/{id:path}/similar",
        summary="Find the documents that resemble a document most.",
        answer=similar,
        response=SimilarResponse,
        parameters={
            **_INDEX,
            "k": "Number of hits, 10 by default.",
            "where": "A filter over the metadata.",
        },
        problems=(404, 413),
    ),
    Operation(
        method="GET",
        path="/documents/{id:path}",
        summary="Read a document.",
        answer=get_document,
        response=StoredDocument,
        parameters=_INDEX,
        problems=(404,),
    ),
)
