"""The options of a search, checked before any model is loaded.

Each option is declared once, as a field of `SearchOptions` or `Fusion`: the command line and the
HTTP server take name, type, bounds, default and help from here.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, TypeVar, Unpack, cast, get_args

from sbert_search.config import unknown_name
from sbert_search.declared import Bounds, check, declared
from sbert_search.errors import QueryError
from sbert_search.records import Where

if TYPE_CHECKING:
    from sbert_search.index.snapshot import Snapshot

SearchMode = Literal["auto", "dense", "lexical", "hybrid"]
MODES: tuple[SearchMode, ...] = get_args(SearchMode)
Syntax = Literal["operators", "plain"]
SYNTAXES: tuple[Syntax, ...] = get_args(Syntax)
FusionMethod = Literal["weighted", "rrf"]
BoostKind = Literal["log", "linear", "recency"]
KINDS: tuple[BoostKind, ...] = get_args(BoostKind)
MAX_RERANK_DEPTH = 10_000  # the reranker reads the text of each document
CANDIDATES = 100  # documents that boosts and diversity reorder without a reranker
SORTED = 1000  # documents that ``sort`` orders without a reranker

_Share = Annotated[float, Bounds(0, 1)]
_WRITTEN = re.compile(r"(?P<column>.+):(?P<kind>[a-z]+):(?P<weight>[^:]+?)(:(?P<days>[^:]+))?")


_IN_OTHER_LIBRARIES = {
    **dict.fromkeys(("top_k", "limit", "n_results", "size"), "k"),
    **dict.fromkeys(("filter", "filters"), "where"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fusion:
    """Settings of the fusion of dense and lexical search; the defaults need no tuning.

    Attributes:
        method: How hybrid scores a document: by its cosine and the share of the highest BM25 score
            that the query can have (weighted), or by its ranks (rrf, reciprocal rank fusion).
            ``weighted``: ``dense_weight * dense + (1 - dense_weight) * lexical``, where ``dense``
            is the cosine of query and document, and ``lexical`` is the BM25 score, divided by the
            most that BM25 can give to the query; see `dense_part` and `lexical_part`. A score
            depends on the query and the document, not on the other documents found.
            ``rrf``: weighted sum of ``1 / (rrf_k + rank)``; a stage (dense or lexical search) adds
            0 for a document that it does not rank within ``depth``. These scores depend on the
            other documents, and so on filters.
        dense_weight: Weight of the cosine in the score of hybrid, 0 to 1; the share of the highest
            BM25 score has the rest.
        depth: Number of best documents of each stage that are candidates. Further documents follow
            them in blocks: those that a stage ranks within 4 times ``depth``, then within 16 times,
            and so on, each block by its scores.
        rrf_k: The constant k of reciprocal rank fusion; a larger k weighs ranks more evenly.
        rerank_weight: Weight of the reranker's score in the final order, 0 to 1; the score before
            reranking has the rest. Below 1, the score of a `Reranker` counts as a probability (the
            sigmoid of its logit).
        score_range: The lowest and the highest score that a reranker of another kind gives; needed
            if ``rerank_weight`` is below 1, since its scores are scaled by this range to 0..1.

    Raises:
        QueryError: The method is unknown, a number has the wrong type or is out of range, or
            ``score_range`` is not two ascending finite numbers.

    Example:
        >>> Fusion(dense_weight=0.7).rerank_weight
        1.0
    """

    method: FusionMethod = "weighted"
    dense_weight: _Share = 0.4
    depth: Annotated[int, Bounds(1)] = 100
    rrf_k: Annotated[int, Bounds(1)] = 60
    rerank_weight: _Share = 1.0
    score_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check(self, QueryError)
        given: object = self.score_range
        values = list(given) if isinstance(given, list | tuple) else []
        numbers = [float(value) for value in values if isinstance(value, Real)]
        if given is not None and not (
            len(numbers) == len(values) == 2
            and all(map(math.isfinite, numbers))
            and numbers[0] < numbers[1]
        ):
            raise QueryError(
                f"score_range is {given!r}; pass the lowest and the highest score of the reranker, "
                "such as (0, 1)."
            )


@dataclass(frozen=True, slots=True)
class Boost:
    """Raises or lowers the scores of documents by a value in their metadata.

    ``weight * f(value)`` is added to the score of each candidate. The scores are those of hybrid
    search; in dense and lexical search, their dense or lexical part alone (see `Fusion`), so that 1
    is the best score there too. After a reranker, its scores are used, of a `Reranker` as
    probabilities. The score of a document without a value does not change.

    Attributes:
        column: A metadata column of numbers or of true (1) and false (0), or for ``recency`` of
            dates or times.
        weight: Weight of the value; below 0, documents with a high value are lowered. If it adds
            0.05 for a high value, unfitting candidates stay behind good hits.
        kind: ``log``: f is ln(1 + value), for counts such as views; values below 0 count as 0.
            ``linear``: f is the value itself. ``recency``: f is 0.5 ** (age / half-life), which is
            1 for a document of age 0 and 0.5 for a document as old as the half-life; a time in the
            future counts as now.
        half_life_days: The half-life in days; ``recency`` needs it.
        now: The time from which ages are measured, in UTC if it names no zone; None: the time of
            the search.

    Raises:
        QueryError: The kind is unknown, a number is not finite, ``half_life_days`` is missing or
            not above 0, ``now`` is no date or time, or ``half_life_days`` or ``now`` is given for
            another kind than ``recency``.

    Example:
        >>> Boost.parse("published:recency:0.05:30").half_life_days
        30.0
    """

    column: str
    weight: float = 0.1
    kind: BoostKind = "log"
    half_life_days: float | None = None
    now: datetime | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise QueryError(unknown_name(self.kind, self.kind, KINDS, "kind of boost"))
        largest = sys.float_info.max  # an integer may be larger, and no float can represent it
        if not (isinstance(self.weight, Real) and -largest <= self.weight <= largest):
            raise QueryError(
                f"The weight of a boost is {self.weight!r:.100}; it must be a finite number."
            )
        days = self.half_life_days
        if self.kind != "recency":
            if days is not None or self.now is not None:
                raise QueryError(
                    f"half_life_days and now are for a boost by recency, not by {self.kind}."
                )
        elif not (isinstance(days, Real) and 0 < days <= sys.float_info.max):
            raise QueryError(
                f"half_life_days is {days!r:.100}; recency needs a number of days above 0."
            )
        elif not isinstance(self.now, date | None):
            raise QueryError(f"now is {self.now!r}; pass a datetime.")

    @classmethod
    def parse(cls, text: str) -> Boost:
        """Read a boost written as ``COLUMN:KIND:WEIGHT`` or ``COLUMN:recency:WEIGHT:DAYS``.

        Raises:
            QueryError: The text has another form, or a value is wrong.
        """
        match = _WRITTEN.fullmatch(text)
        try:
            weight = float(match["weight"]) if match else math.nan
            days = float(match["days"]) if match and match["days"] else None
        except ValueError:
            match = None
        if match is None:
            raise QueryError(
                f"{text!r} is not a boost; write COLUMN:log:WEIGHT, COLUMN:linear:WEIGHT or "
                "COLUMN:recency:WEIGHT:DAYS, such as views:log:0.01 or published:recency:0.05:30."
            )
        return cls(match["column"], weight, cast("BoostKind", match["kind"]), days)


class OrderKeywords(TypedDict, total=False):
    """The fields of `SearchOptions` that do not depend on a query, except ``k``."""

    where: Where | None
    offset: int
    min_score: float | None
    sort: str | Sequence[str] | None
    boost: Boost | Sequence[Boost]
    diversity: float
    group_by: str | None
    group_size: int
    full_text: bool
    fields: str | Sequence[str] | None


class SearchKeywords(OrderKeywords, total=False):
    """The fields of `SearchOptions` except ``k``; ``fusion=None`` means the default `Fusion`."""

    mode: SearchMode
    fusion: Fusion | None
    rerank_depth: int
    syntax: Syntax | None
    group: bool
    fuzzy: int
    answer_depth: int


class MatchKeywords(TypedDict, total=False):
    """The fields of `SearchOptions` that decide which documents match a query."""

    mode: SearchMode
    where: Where | None
    syntax: Syntax | None
    fuzzy: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """How documents are found and ordered.

    Attributes:
        k: Number of documents to return. If fewer documents match, all of them are returned.
        mode: Compare vectors (dense), words (lexical), or both (hybrid); auto: both if the index
            has lexical data, else vectors. ``lexical`` is BM25 and needs no model; ``hybrid`` fuses
            the two rankings. If an index with lexical data has no model, ``auto`` is lexical for a
            query without a vector.
        where: Filter over the metadata, such as ``year >= 2019 AND kind = 'class'``. Values from
            elsewhere are passed beside the text, ``("brand = ?", [brand])``, or in a mapping,
            ``{"brand": brand, "year": {"$gte": 2019}}``.
        fusion: How hybrid fuses its rankings, and how much a reranker's score counts.
        rerank_depth: Number of hits to rerank. These are the candidates; further documents follow
            them in the order of retrieval, with their scores of retrieval. Without a reranker this
            has no effect.
        offset: Number of best documents to leave out, for further pages of results.
        min_score: Lowest score of a document that is returned. With boosts, this is the boosted
            score; else the score of the reranker if there is one; else the fused score in hybrid
            search; else the score of the mode. The scores of the modes have different ranges, so
            name the mode too. Cosines are rounded; 1 finds equal vectors all the same, and in a
            float16 index more than 0.999 means 0.999. None: no limit.
        sort: Columns by whose values documents are ordered, ascending; -COLUMN: descending. They
            are a list, or one text, ``"-in_stock,price"``; the next column orders documents with
            equal values, and at last the score. Ordered are the best 1,000 documents, or those that
            the reranker scores; no others are returned. In hybrid search they must have a word of
            the query, as for `SearchEngine.count`. A document without a value comes last.
        syntax: Whether "exact phrase", +must and -not in a query are filters (operators), or the
            query is only text (plain). Operators need lexical data in the index. None:
            ``operators``, but ``plain`` for `SearchEngine.run` and `SearchEngine.iter_run`, whose
            queries are those of evaluations.
        boost: Numbers or dates in the metadata that raise documents; see `Boost`. Boosts reorder
            the candidates: the documents that the reranker scores or, without a reranker, the first
            100 documents. Further documents follow them in the order of retrieval.
        diversity: Avoid hits that resemble better hits, from 0 (not at all) to 1. The hits are
            chosen from the candidates by maximal marginal relevance (Carbonell & Goldstein 1998)
            over the stored vectors.
        group_by: Return the best documents of each value of this column. The result then has k
            groups, or all groups if there are fewer; the best group is first. A document without a
            value is a group of its own. ``offset`` counts groups. A reranker, boosts and diversity
            order the candidates. If the candidates do not fill the groups, further documents follow
            the candidates in the order of retrieval.
        group_size: Number of documents of each group; k counts groups.
        group: Whether a hit is a document, found by its best passage. False: a hit is a passage, k
            counts passages, and several hits may come from one document. Lexical search then reads
            the ``fusion.depth`` best documents, or k if that is more, and scores their passages.
        full_text: Return the whole text of a document with several passages, not only its best
            passage.
        fields: Metadata columns, title and text that hits have; others are left out. They are a
            list, or one text, ``"title,price"``; rank, id and score stay. None: all.
        fuzzy: Number of edits by which words may differ from those of the query, in lexical and
            hybrid search. In every mode, words with + may differ by as much. An edit inserts,
            deletes or replaces a character or swaps two neighbours; the first character must be
            equal. Words of up to five characters have at most one edit; those of one or two
            characters and those with digits must be equal.
        answer_depth: Number of hits to read for an answer, from the best hit of a page on. See
            ``reader`` of `SearchEngine`.

    Raises:
        QueryError: The mode or the syntax is unknown, ``fusion``, ``boost``, ``group_by`` or a
            number has the wrong type, k or ``group_size`` is below 1, ``offset`` or
            ``answer_depth`` is negative, ``min_score`` is NaN, ``diversity`` is not from 0 to 1,
            ``fuzzy`` or ``rerank_depth`` is out of range, ``group_size`` is given without
            ``group_by``, ``group_by`` with ``group=False``, or ``sort`` with ``diversity``.

    Example:
        >>> SearchOptions(k=3, mode="hybrid", where="year >= 2019").with_keywords(5).k
        5
    """

    k: Annotated[int, Bounds(1)] = 10
    mode: SearchMode = "auto"
    where: Annotated[Where | None, Bounds(metavar="EXPR")] = None
    fusion: Fusion = Fusion()
    rerank_depth: Annotated[int, Bounds(0, MAX_RERANK_DEPTH)] = 100
    offset: Annotated[int, Bounds(0)] = 0
    min_score: float | None = None
    sort: Annotated[str | Sequence[str] | None, Bounds(metavar="COLUMN,...")] = None
    syntax: Syntax | None = None
    boost: Boost | Sequence[Boost] = ()
    diversity: _Share = 0.0
    group_by: Annotated[str | None, Bounds(metavar="COLUMN")] = None
    group_size: Annotated[int, Bounds(1)] = 1
    group: bool = True
    full_text: bool = False
    fields: Annotated[str | Sequence[str] | None, Bounds(metavar="COLUMN,...")] = None
    fuzzy: Annotated[int, Bounds(0, 2)] = 0
    answer_depth: Annotated[int, Bounds(0)] = 5

    def __post_init__(self) -> None:
        check(self, QueryError)
        if not isinstance(self.fusion, Fusion):
            raise QueryError(f"fusion is {self.fusion!r}; pass Fusion(METHOD).")
        given: object = self.boost
        boosts = tuple(given) if isinstance(given, list | tuple) else (given,)
        for boost in boosts:
            if not isinstance(boost, Boost):
                raise QueryError(f"boost is {boost!r}; pass Boost(COLUMN, WEIGHT) or several.")
        object.__setattr__(self, "boost", boosts)
        if self.group_size > 1 and self.group_by is None:
            raise QueryError(f"group_size is {self.group_size}, but group_by names no column.")
        if self.group_by is not None and not self.group:
            raise QueryError(
                f"group_by is {self.group_by!r}, which groups documents, but group=False asks for "
                "passages; leave out one of the two."
            )
        if self.sort and self.diversity:
            raise QueryError("sort and diversity both order the hits; leave out one of the two.")

    @property
    def boosts(self) -> Sequence[Boost]:
        """The boosts, as a sequence."""
        return (self.boost,) if isinstance(self.boost, Boost) else self.boost

    @property
    def candidates(self) -> int:
        """Number of documents that later stages may reorder; without such stages, all."""
        reordered = CANDIDATES if self.boost or self.diversity else self.offset + self.k
        return self.rerank_depth or (SORTED if self.sort else reordered)

    @property
    def least(self) -> float | None:
        """Lowest score of retrieval; None: no limit, or a limit of the scores of later stages."""
        return None if self.rerank_depth or self.boost else self.min_score

    @property
    def depth(self) -> int:
        """Number of documents to find: the candidates, and further documents up to the page."""
        return max(0 if self.sort else self.offset + self.k, self.candidates)

    def for_index(self, snapshot: Snapshot) -> SearchOptions:
        """Replace the mode ``auto``: hybrid if the index has lexical data, otherwise dense.

        `queries.checked_queries` chooses another mode for queries that are only vectors, and for
        texts if the index has no model.
        """
        if self.mode != "auto":
            return self
        return replace(self, mode="dense" if snapshot.manifest.lexical is None else "hybrid")

    def with_keywords(self, k: int | None, **keywords: Unpack[SearchKeywords]) -> SearchOptions:
        """Return these options with some of them replaced; if ``k`` is None, k stays the same.

        Raises:
            QueryError: As for `SearchOptions`.
            TypeError: There is no such option.
        """
        known = declared(SearchOptions)
        for name in keywords.keys() - known.keys():
            meant = _IN_OTHER_LIBRARIES.get(name, name)
            raise TypeError(unknown_name(name, meant, known, "search option"))
        changes: dict[str, object] = {"k": self.k if k is None else k, **keywords}
        if changes.get("fusion", self.fusion) is None:
            changes["fusion"] = Fusion()
        return replace(self, **changes)  # type: ignore[arg-type]


K = TypeVar("K")


def keywords_of(options: SearchOptions, keywords: type[K]) -> K:
    """Return the options that a `TypedDict` of keywords names."""
    return cast(K, {name: getattr(options, name) for name in keywords.__annotations__})


def require_queries(queries: Sequence[str]) -> None:
    """Refuse queries that are no list of texts, or of which one is blank."""
    if isinstance(queries, str):
        raise QueryError("The queries are one string; pass a list of strings, or use `search`.")
    for number, query in enumerate(queries, 1):
        which = "The query" if len(queries) == 1 else f"Query {number}"
        if not isinstance(query, str):
            raise QueryError(f"{which} is of type {type(query).__name__}; it must be a text.")
        if not query.strip():
            raise QueryError(f"{which} is empty; ask something.")
