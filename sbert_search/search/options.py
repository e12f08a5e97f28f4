"""The options of a search, checked before any model is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, get_args

from sbert_search.config import is_integer, unknown_name
from sbert_search.errors import QueryError
from sbert_search.search.boosts import Boost
from sbert_search.search.ranking import Fusion

if TYPE_CHECKING:
    from sbert_search.index.snapshot import Snapshot

SearchMode = Literal["auto", "dense", "lexical", "hybrid"]
MODES: tuple[SearchMode, ...] = get_args(SearchMode)
Syntax = Literal["operators", "plain"]
SYNTAXES: tuple[Syntax, ...] = get_args(Syntax)
MAX_RERANK_DEPTH = 10_000
CANDIDATES = 100  # documents that boosts and diversity reorder without a reranker
MAX_FUZZY = 2


class SearchKeywords(TypedDict, total=False):
    """The fields of `SearchOptions` except ``k``; ``fusion=None`` means the default `Fusion`."""

    mode: SearchMode
    where: str | None
    fusion: Fusion | None
    rerank_depth: int
    offset: int
    min_score: float | None
    syntax: Syntax | None
    boost: Boost | Sequence[Boost]
    diversity: float
    group_by: str | None
    group_size: int
    group: bool
    full_text: bool
    fuzzy: int
    answer_depth: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """How documents are found and ordered.

    Attributes:
        k: Number of documents to return. If fewer documents match, all of them are returned.
        mode: ``dense`` compares vectors; ``lexical`` compares words (BM25) and needs no model;
            ``hybrid`` does both and fuses the two rankings; ``auto`` is hybrid if the index has
            lexical data, which it has by default, else dense. If the index has lexical data but no
            model, ``auto`` is lexical for a query without a vector.
        where: A filter over the metadata, such as ``year >= 2019 AND kind = 'class'``.
        fusion: How ``hybrid`` fuses its rankings, and how much a reranker's score counts.
        rerank_depth: Documents that the reranker scores, the candidates. Further documents follow
            them in the order of retrieval, with their scores of retrieval. Without a reranker this
            has no effect.
        offset: Number of the best documents to leave out, for further pages of results.
        min_score: Lowest `Hit.score` of a document that is returned. With boosts, this is the
            boosted score; else the score of the reranker if there is one; else the fused score in
            hybrid search; else the score of the mode. The scores of the modes have different
            ranges, so name the mode too. Cosines are rounded; 1 finds equal vectors all the same,
            and in a float16 index more than 0.999 means 0.999. None: no limit.
        syntax: ``operators``: ``"exact phrase"``, ``+must`` and ``-not`` in a query are filters,
            which need lexical data in the index; ``plain``: a query is only text. None:
            ``operators``, but ``plain`` for `SearchEngine.run` and `SearchEngine.rankings`, whose
            queries are those of evaluations.
        fuzzy: Number of edits, 0 to 2, by which words of documents may differ from words of the
            query in lexical and hybrid search, and from ``+must`` words in every mode. An edit
            inserts, deletes or replaces a character or swaps two neighbours; the first character
            must be equal. Words of up to five characters have at most one edit; those of one or
            two characters and those with digits must be equal.
        boost: Numbers or dates in the metadata that raise documents; see `Boost`. Boosts reorder
            the candidates: the documents that the reranker scores or, without a reranker, the first
            100 documents. Further documents follow them in the order of retrieval.
        diversity: How much to avoid hits that resemble better hits, from 0 (not at all) to 1. The
            hits are chosen from the candidates by maximal marginal relevance (Carbonell & Goldstein
            1998) over the stored vectors.
        group_by: A metadata column. The result then has k groups, or all groups if there are fewer.
            A group has the best documents of one value of the column; the best group is first. A
            document without a value is a group of its own. ``offset`` counts groups. A reranker,
            boosts and diversity order the candidates. If the candidates do not fill the groups,
            further documents follow the candidates in the order of retrieval.
        group_size: Number of documents of each group.
        group: Whether a hit is a document, found by its best passage. False: a hit is a passage, k
            counts passages, and several hits may come from one document. Lexical search then reads
            the ``fusion.depth`` best documents, or k if that is more, and scores their passages.
        answer_depth: Number of hits, from the best hit of a page on, in which a model for questions
            looks for an answer; see ``reader`` of `SearchEngine`.
        full_text: Whether `Hit.text` is the whole text of a document with several passages, and not
            only its best passage.

    Raises:
        QueryError: The mode or the syntax is unknown, ``fusion``, ``boost``, ``group_by`` or a
            number has the wrong type, k or ``group_size`` is below 1, ``offset`` or
            ``answer_depth`` is negative, ``min_score`` is NaN, ``diversity`` is not from 0 to 1,
            ``fuzzy`` or ``rerank_depth`` is out of range, ``group_size`` is given without
            ``group_by``, or ``group_by`` with ``group=False``.
    """

    k: int = 10
    mode: SearchMode = "auto"
    where: str | None = None
    fusion: Fusion = Fusion()  # noqa: RUF009 (frozen)
    rerank_depth: int = 100
    offset: int = 0
    min_score: float | None = None
    syntax: Syntax | None = None
    boost: Boost | Sequence[Boost] = ()
    diversity: float = 0.0
    group_by: str | None = None
    group_size: int = 1
    group: bool = True
    full_text: bool = False
    fuzzy: int = 0
    answer_depth: int = 5

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise QueryError(unknown_name(self.mode, self.mode, MODES, "search mode"))
        if self.syntax is not None and self.syntax not in SYNTAXES:
            raise QueryError(unknown_name(self.syntax, self.syntax, SYNTAXES, "query syntax"))
        self._check_numbers()
        if self.k < 1:
            raise QueryError(f"k is {self.k}; ask for at least 1 hit.")
        for name in ("offset", "answer_depth"):
            if (value := getattr(self, name)) < 0:
                raise QueryError(f"{name} is {value}; it must not be negative.")
        if self.min_score is not None and math.isnan(self.min_score):
            raise QueryError("min_score is NaN; pass a number.")
        if not 0 <= self.fuzzy <= MAX_FUZZY:
            raise QueryError(f"fuzzy is {self.fuzzy}; it must be 0, 1 or 2 edits.")
        if not 0 <= self.rerank_depth <= MAX_RERANK_DEPTH:
            raise QueryError(
                f"rerank_depth is {self.rerank_depth:,}; it must be from 0 to "
                f"{MAX_RERANK_DEPTH:,}, since the reranker reads the text of each of them."
            )
        self._check_boosts()
        self._check_order()

    def _check_numbers(self) -> None:
        for name in ("k", "offset", "fuzzy", "rerank_depth", "group_size", "answer_depth"):
            value: object = getattr(self, name)
            if type(value) is not int and not is_integer(value):  # the latter is slow
                raise QueryError(f"{name} is {value!r}; pass an integer.")
        if not isinstance(self.fusion, Fusion):
            raise QueryError(f"fusion is {self.fusion!r}; pass Fusion(METHOD).")
        for name in ("min_score", "diversity"):
            value = getattr(self, name)
            if type(value) is float or (name == "min_score" and value is None):
                continue
            if not isinstance(value, Real):
                raise QueryError(f"{name} is {value!r}; pass a number.")

    def _check_boosts(self) -> None:
        given: object = self.boost
        boosts = tuple(given) if isinstance(given, list | tuple) else (given,)
        for boost in boosts:
            if not isinstance(boost, Boost):
                raise QueryError(f"boost is {boost!r}; pass Boost(COLUMN, WEIGHT) or several.")
        object.__setattr__(self, "boost", boosts)

    def _check_order(self) -> None:
        if not isinstance(self.where, str | None):
            raise QueryError(f"where is {self.where!r}; pass a filter as a text, or None.")
        if not isinstance(self.group_by, str | None):
            raise QueryError(f"group_by is {self.group_by!r}; pass the name of a column.")
        if not 0 <= self.diversity <= 1:
            raise QueryError(f"diversity is {self.diversity}; it must be from 0 to 1.")
        if self.group_size < 1:
            raise QueryError(f"group_size is {self.group_size}; it must be at least 1.")
        if self.group_size > 1 and self.group_by is None:
            raise QueryError(f"group_size is {self.group_size}, but group_by names no column.")
        if self.group_by is not None and not self.group:
            raise QueryError(
                f"group_by is {self.group_by!r}, which groups documents, but group=False asks for "
                "passages; leave out one of the two."
            )

    @property
    def boosts(self) -> Sequence[Boost]:
        """The boosts, as a sequence."""
        return (self.boost,) if isinstance(self.boost, Boost) else self.boost

    @property
    def candidates(self) -> int:
        """Number of documents that later stages may reorder; without such stages, all."""
        reordered = CANDIDATES if self.boost or self.diversity else self.offset + self.k
        return self.rerank_depth or reordered

    @property
    def least(self) -> float | None:
        """Lowest score of retrieval; None: no limit, or a limit of the scores of later stages."""
        return None if self.rerank_depth or self.boost else self.min_score

    @property
    def depth(self) -> int:
        """Number of documents to find: the candidates, and further documents up to the page."""
        return max(self.offset + self.k, self.candidates)

    def for_index(self, snapshot: Snapshot) -> SearchOptions:
        """Replace the mode ``auto``: hybrid if the index has lexical data, otherwise dense.

        `queries.ask` chooses another mode for queries that are only vectors, and for texts if the
        index has no model.
        """
        if self.mode != "auto":
            return self
        return replace(self, mode="dense" if snapshot.settings.lexical is None else "hybrid")

    def with_keywords(self, k: int | None, **keywords: Unpack[SearchKeywords]) -> SearchOptions:
        """Return these options with some of them replaced; if ``k`` is None, k stays the same.

        Raises:
            QueryError: As for `SearchOptions`.
            TypeError: There is no such option.
        """
        for name in keywords.keys() - SearchKeywords.__annotations__.keys():
            known = ("k", *SearchKeywords.__annotations__)
            raise TypeError(unknown_name(name, name, known, "search option"))
        return SearchOptions(
            k=self.k if k is None else k,
            mode=keywords.get("mode", self.mode),
            where=keywords.get("where", self.where),
            fusion=keywords.get("fusion", self.fusion) or Fusion(),
            rerank_depth=keywords.get("rerank_depth", self.rerank_depth),
            offset=keywords.get("offset", self.offset),
            min_score=keywords.get("min_score", self.min_score),
            syntax=keywords.get("syntax", self.syntax),
            boost=keywords.get("boost", self.boost),
            diversity=keywords.get("diversity", self.diversity),
            group_by=keywords.get("group_by", self.group_by),
            group_size=keywords.get("group_size", self.group_size),
            group=keywords.get("group", self.group),
            full_text=keywords.get("full_text", self.full_text),
            fuzzy=keywords.get("fuzzy", self.fuzzy),
            answer_depth=keywords.get("answer_depth", self.answer_depth),
        )


def require_queries(queries: Sequence[str]) -> None:
    """Refuse queries that are not strings or are blank.

    Raises:
        QueryError: A query is not a string or is blank; the message names its number. Or
            ``queries`` is a string and not a list of strings.
    """
    if isinstance(queries, str):
        raise QueryError("The queries are one string; pass a list of strings, or use `search`.")
    for number, query in enumerate(queries, 1):
        which = "The query" if len(queries) == 1 else f"Query {number}"
        if not isinstance(query, str):
            raise QueryError(f"{which} is of type {type(query).__name__}; it must be a text.")
        if not query.strip():
            raise QueryError(f"{which} is empty; ask something.")
