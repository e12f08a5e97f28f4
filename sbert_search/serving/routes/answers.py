"""Hits, counts and indexes in the form in which answers show them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime

from sbert_search.records import Hit, MetadataValue
from sbert_search.search.facets import Facet
from sbert_search.serving.indexes import ServedIndex
from sbert_search.serving.models.work import Work
from sbert_search.serving.schemas.fields import JsonScalar, JsonValue
from sbert_search.serving.schemas.search import (
    FacetCounts,
    FacetRange,
    FacetValue,
    IndexCard,
    SearchHit,
    StageRank,
    StageTimes,
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
        metadata=metadata_of(hit.metadata),
        chunk=hit.chunk,
        best_sentence=hit.best_sentence if highlight else None,
        matched_words=list(hit.matched_words) if highlight else None,
        stages=stages if explain else None,
    )


def card_of(served_index: ServedIndex, writable: bool) -> IndexCard:
    """Describe an index."""
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
