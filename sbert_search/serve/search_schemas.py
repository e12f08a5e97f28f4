"""Requests and responses of searches, indexes, documents and updates, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar, cast

from msgspec import Meta, Struct, defstruct

from sbert_search.declared import declared
from sbert_search.records import Where
from sbert_search.search.options import Fusion, OrderKeywords, SearchOptions

MOST = 1_000_000
MOST_BOOSTS = 8  # each reads a column of the candidates
Count = Annotated[int, Meta(ge=1, le=MOST)]
Position = Annotated[int, Meta(ge=0, le=MOST)]
FacetLimit = Annotated[int, Meta(ge=1, le=100)]

JsonScalar = str | int | float | bool
JsonValue = str | int | float | bool | list[JsonScalar] | None
"""A metadata value in JSON; dates and times are texts in ISO 8601."""


class Usage(Struct, kw_only=True):
    """What a request cost.

    Attributes:
        prompt_tokens: Tokens that the model read.
        total_tokens: The same number, as clients of OpenAI expect it.
        truncated_texts: Number of texts that were cut to what the model reads.
    """

    prompt_tokens: int
    total_tokens: int
    truncated_texts: int = 0


JsonWhere: TypeAlias = str | tuple[str, list[Any]] | dict[str, Any]
"""A filter as JSON; see `sbert_search.records.Where`."""


def options_of(settings: type, *names: str, **defaults: object) -> list[tuple[str, type, object]]:
    """Return fields of a struct for fields of a settings dataclass, with bounds and descriptions.

    A whole number without an upper limit is at most `MOST`. A field among ``defaults`` has another
    default; None, which requests write as null, leaves the choice to the server.
    """
    fields = []
    for name in names:
        option = declared(settings)[name]
        low, high = option.bounds.low, option.bounds.high
        if option.kind is int and high is None:
            high = MOST
        kind: Any = JsonWhere if option.kind == Where else option.kind
        if low is not None or high is not None:
            kind = Annotated[kind, Meta(ge=low, le=high)]
        default, help = defaults.get(name, option.default), option.help
        if default is None:
            kind = kind | None
            help += " null: as the server was started." if name in defaults else ""
        described = Annotated[kind, Meta(description=help)]
        fields.append((name, cast(type, described), default))
    return fields


FUSION = ("method", "dense_weight", "depth", "rrf_k", "rerank_weight")
FusionSettings: type[Struct] = defstruct(
    "FusionSettings",
    options_of(Fusion, *FUSION, **dict.fromkeys(FUSION)),
    namespace={"__doc__": "How hybrid search fuses its rankings; see `sbert_search.Fusion`."},
    kw_only=True,
    forbid_unknown_fields=True,
)


class AskedSearch(Struct, kw_only=True, forbid_unknown_fields=True):
    """A query or several, with most options of `sbert_search.SearchOptions`.

    Without a query, all documents that pass the filter match, in the order of ``sort``.

    Attributes:
        query: One query.
        queries: Several queries, in place of ``query``.
        index: Name of the index; "": the first one.
        k: Number of hits; null: 10, or the most that the server allows if that is fewer.
        fusion: How hybrid search fuses.
        boost: Numbers or dates in the metadata that raise documents, each written as on the command
            line: ``COLUMN:KIND:WEIGHT`` or ``COLUMN:recency:WEIGHT:DAYS``.
        rerank: Whether the server's reranker scores the first hits again.
        highlight: Whether hits have the best sentence and the words that matched.
        explain: Whether hits have their rank and score in every stage.
        passages: Whether a hit is a passage, so that several may come from a document.
        facets: Columns whose values are counted among all documents that match, or in ranges, such
            as ``price:0:50:100``; one query only.
        facet_values: Largest number of values that are listed for each of ``facets``, and of
            ranges.
    """

    query: str | None = None
    queries: list[str] | None = None
    index: str = ""
    k: Count | None = None
    fusion: FusionSettings | None = None  # type: ignore[valid-type]
    boost: Annotated[list[str], Meta(max_length=MOST_BOOSTS)] = []
    rerank: bool = False
    highlight: bool = False
    explain: bool = False
    passages: bool = False
    facets: list[str] = []
    facet_values: FacetLimit = 10


OPTIONS = (
    "offset",
    "mode",
    "fuzzy",
    "where",
    "rerank_depth",
    "syntax",
    "min_score",
    "sort",
    "diversity",
    "group_by",
    "group_size",
    "full_text",
    "fields",
)
S = TypeVar("S", bound=Struct)


def _request(asked: type[S], *names: str, **defaults: object) -> type[S]:
    """Add options of a search to the fields of a request; the name begins with Asked."""
    made = defstruct(
        f"{asked.__name__.removeprefix('Asked')}Request",
        options_of(SearchOptions, *names, **defaults),
        bases=(asked,),
        namespace={"__doc__": asked.__doc__},
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return cast(type[S], made)


SearchRequest = _request(AskedSearch, *OPTIONS, syntax="operators", mode=None, fuzzy=None)


class AskedSimilar(Struct, kw_only=True, forbid_unknown_fields=True):
    """Documents of an index, for others like them, with the options that need no query.

    Attributes:
        like: Ids of documents that the hits shall be like.
        unlike: Ids of documents that the hits shall be far from.
        index: Name of the index; "": the first one.
        k: Number of hits; null: 10, or the most that the server allows if that is fewer.
        boost: As in a search.
    """

    like: list[str]
    unlike: list[str] = []
    index: str = ""
    k: Count | None = None
    boost: Annotated[list[str], Meta(max_length=MOST_BOOSTS)] = []


FACETS = ("mode", "fuzzy", "where", "syntax")
SIMILAR = tuple(name for name in OPTIONS if name in OrderKeywords.__annotations__)
SimilarRequest = _request(AskedSimilar, *SIMILAR)


class StageRank(Struct, kw_only=True):
    """Rank and score of a hit in a stage of a search; the rank is null beyond ``fusion.depth``."""

    rank: int | None
    score: float


class SearchHit(Struct, kw_only=True, omit_defaults=True):
    """A document that was found.

    Attributes:
        rank: Position in the result, from 1.
        id: Id of the document.
        score: The score by which hits are sorted.
        title: Its title, or "".
        text: Its text; of a document with several passages, the best one.
        metadata: Its metadata, of which ``fields`` may name a part, also without text or title.
        chunk: Number of its best passage, from 0.
        best_sentence: The sentence that answers best, with ``highlight``.
        matched_words: The words that matched, with ``highlight``.
        stages: Its rank and score in each stage, with ``explain``.
    """

    rank: int
    id: str
    score: float
    title: str
    text: str
    metadata: dict[str, JsonValue]
    chunk: int
    best_sentence: str | None = None
    matched_words: list[str] | None = None
    stages: dict[str, StageRank] | None = None


class SearchResult(Struct, kw_only=True):
    """The hits of a query, best first, or in the order that was asked for.

    Attributes:
        query: The query; "": all documents match that pass the filter.
        mode: The mode that found them; "" without a query.
        commit: Number of commits of the index up to the state that was searched.
        missing_shards: Lost shards, whose documents were not searched; only `serve --partial` has
            such answers.
        hits: The hits.
        total: Number of documents that match, or with ``group_by`` of their groups: those with a
            word of the query that pass the filter and meet the operators; in dense mode and without
            a query, those that pass the filter and meet the operators. Hybrid search without
            ``sort`` ranks other documents behind them. null: not counted, as there are several
            queries.
        suggestion: The query without its typing errors, by the words of the index; null: none seems
            misspelt, or there are several queries.
    """

    query: str
    mode: str
    commit: int
    missing_shards: list[str]
    hits: list[SearchHit]
    total: int | None = None
    suggestion: str | None = None


class FacetValue(Struct, kw_only=True):
    """A value of a column, and the number of documents that match and have it."""

    value: JsonScalar
    count: int


class FacetRange(Struct, kw_only=True):
    """A range of values, and the number of documents with a value in it.

    Attributes:
        low: The lowest value of the range.
        high: The end of the range, which belongs to the next range; in the last range, the highest
            value, or ``low`` if it is empty.
        count: Number of documents with a value in the range.
    """

    low: JsonScalar
    high: JsonScalar
    count: int


class FacetCounts(Struct, kw_only=True):
    """The values of a column among the documents that match.

    Attributes:
        column: The column.
        values: The most frequent values.
        other: Number of documents with a value that ``values`` does not list. In a column of lists,
            a document counts once for each such value.
        missing: Number of documents without a value.
        low: The lowest value of a column of numbers, dates or times.
        high: The highest value of such a column.
        ranges: The ranges asked for, or equally wide ones of such a column, if it has more values
            than ``values`` holds.
        total: Number of documents that match, with or without a value.
    """

    column: str
    values: list[FacetValue]
    other: int
    missing: int
    low: JsonScalar | None = None
    high: JsonScalar | None = None
    ranges: list[FacetRange] = []
    total: int = 0


class AskedFacet(Struct, kw_only=True, forbid_unknown_fields=True):
    """Columns whose values are counted among the documents that match.

    Attributes:
        columns: The columns; ``price:0:50:100`` counts the ranges between these values.
        index: Name of the index; "": the first one.
        query: A text; with the modes lexical and hybrid, documents with a word of it match, and
            with dense all those that meet its operators. None: every document matches.
        n: Largest number of values that are listed for a column, and of ranges.
    """

    columns: list[str]
    index: str = ""
    query: str | None = None
    n: FacetLimit = 10


FacetRequest = _request(AskedFacet, *FACETS, syntax="operators", mode=None, fuzzy=None)


class FacetResponse(Struct, kw_only=True):
    """The counts of each column."""

    index: str
    facets: list[FacetCounts]


class StageTimes(Struct, kw_only=True):
    """Milliseconds of the stages of a request."""

    tokenization: float
    queue: float
    inference: float
    search: float


class SearchResponse(Struct, kw_only=True):
    """The results, one for each query."""

    index: str
    results: list[SearchResult]
    facets: list[FacetCounts]
    usage: Usage
    took_ms: StageTimes


class IndexCard(Struct, kw_only=True):
    """An index of the server.

    Attributes:
        name: Name in requests.
        documents: Number of documents.
        passages: Number of passages.
        commit: Number of commits up to the state that is served.
        loaded_at: When this state was loaded, in seconds since 1970.
        dim: Dimensions of a vector.
        metric: How vectors are compared.
        modes: Modes in which it can be searched.
        reranks: Whether the server has a reranker for it.
        model: Name of its model; None: it has none.
        query_model: Name of the model that embeds queries in its place; None: there is none.
        columns: Metadata columns and their types.
        writable: Whether documents can be added.
        reload_error: Which commit is not served, and why; "": the newest one is served.
        migrating_to: Name of the model of a migration that has not switched yet, or "".
        migration_left: Number of passages that it has not embedded yet.
    """

    name: str
    documents: int
    passages: int
    commit: int
    loaded_at: float
    dim: int
    metric: str
    modes: list[str]
    reranks: bool
    model: str | None
    query_model: str | None
    columns: dict[str, str]
    writable: bool
    reload_error: str
    migrating_to: str
    migration_left: int


class IndexList(Struct, kw_only=True):
    """The indexes of the server; the first one is searched if a request names none.

    Attributes:
        indexes: The indexes.
        max_k: Most hits of a search, with those of earlier pages.
        mode: Mode of a search that names none; auto: hybrid, or what the index has of it.
    """

    indexes: list[IndexCard]
    max_k: int
    mode: str


class StoredDocument(Struct, kw_only=True):
    """A document of an index."""

    index: str
    id: str
    title: str
    text: str
    metadata: dict[str, JsonValue]


class SimilarResponse(Struct, kw_only=True):
    """The documents that resemble a document, or several, most."""

    index: str
    id: str  # the first of several
    commit: int
    missing_shards: list[str]
    hits: list[SearchHit]


class NewDocument(Struct, kw_only=True, forbid_unknown_fields=True):
    """A document to index.

    Attributes:
        id: Its id.
        text: Its text.
        title: Its title.
        metadata: Its metadata; a key that is no column of the index yet becomes one.
    """

    id: str
    text: str
    title: str = ""
    metadata: dict[str, JsonValue] = {}


class UpdateRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Documents to add or to replace.

    Attributes:
        documents: The documents.
        index: Name of the index; "": the first one.
    """

    documents: list[NewDocument]
    index: str = ""


class DocumentChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """New values of some fields of an indexed document; the others stay.

    Attributes:
        id: Its id.
        text: Its text; "": as it was.
        title: Its title; "": as it was.
        metadata: The metadata that change; null: the document loses the value (RFC 7396).
    """

    id: str
    text: str = ""
    title: str = ""
    metadata: dict[str, JsonValue] = {}


class ChangeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Documents to change.

    Attributes:
        documents: The changes, one for each document.
        index: Name of the index; "": the first one.
        skip_unknown: Whether changes of ids that the index lacks are left out, and not an error.
    """

    documents: list[DocumentChange]
    index: str = ""
    skip_unknown: bool = False


class UpdateResponse(Struct, kw_only=True):
    """What an update changed; the changes are on disk.

    Attributes:
        index: Name of the index.
        indexed: Number of new documents.
        replaced: Number of documents whose content was replaced.
        duplicate: Number of documents that the index held already.
        commit: Number of the commit that holds these documents; each commit has the next number.
        new_columns: Columns that the index had not before; a misspelt one is among them.
        changed_columns: The new type of each column of integers that got a float.
        skipped: Ids that the index lacks, with ``skip_unknown``.
        lost: What replaced documents lost, since no document of the request has it: a message each.
    """

    index: str
    indexed: int
    replaced: int
    duplicate: int
    commit: int
    new_columns: list[str]
    changed_columns: dict[str, str]
    skipped: list[str]
    lost: list[str]


class DeleteRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Documents to delete, by ids or by a filter.

    Attributes:
        ids: Ids; unknown ones are ignored.
        where: A filter over the metadata.
        index: Name of the index; "": the first one.
    """

    ids: list[str] | None = None
    where: JsonWhere | None = None
    index: str = ""


class DeleteResponse(Struct, kw_only=True):
    """What a deletion changed; the changes are on disk."""

    index: str
    deleted: int
    commit: int
