"""The options of a search, checked before any model is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, get_args

from sbert_search.config import unknown_name
from sbert_search.errors import QueryError
from sbert_search.search.fusion import Fusion

if TYPE_CHECKING:
    from sbert_search.index.snapshot import Snapshot

SearchMode = Literal["auto", "dense", "lexical", "hybrid"]
MODES: tuple[SearchMode, ...] = get_args(SearchMode)
Syntax = Literal["operators", "plain"]
SYNTAXES: tuple[Syntax, ...] = get_args(Syntax)
MAX_RERANK_DEPTH = 10_000


class SearchKeywords(TypedDict, total=False):
    """The fields of `SearchOptions` as keyword arguments; ``fusion=None`` means the defaults."""

    mode: SearchMode
    where: str | None
    fusion: Fusion | None
    rerank_depth: int
    offset: int
    min_score: float | None
    syntax: Syntax | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """How documents are found and ordered.

    Attributes:
        k: Documents to return; all of them where the index holds fewer.
        mode: ``dense`` compares vectors; ``lexical`` compares words (BM25) and needs no model;
            ``hybrid`` does both and fuses the two rankings; ``auto`` is hybrid if the index has
            lexical data, which it has by default, else dense.
        where: A filter over the metadata, such as ``year >= 2019 AND kind = 'class'``.
        fusion: How ``hybrid`` fuses its rankings, and how much a reranker's score counts.
        rerank_depth: Documents that the reranker scores; it scores ``offset`` + k documents if that
            is more. Without a reranker this has no effect.
        offset: Number of the best documents to leave out, for further pages of results.
        min_score: Lowest score of a document that is returned, compared with `Hit.score`: the score
            of the reranker if there is one, else of the fusion in hybrid search, else of the mode.
            The scores of the modes have different ranges, so name the mode too. None: no limit.
        syntax: ``operators``: ``"exact phrase"``, ``+must`` and ``-not`` in a query are filters,
            which need lexical data in the index; ``plain``: a query is only text. None:
            ``operators``, but ``plain`` for `SearchEngine.run` and `SearchEngine.rankings`, whose
            queries are those of evaluations.

    Raises:
        QueryError: The mode or the syntax is unknown, k is below 1, ``offset`` is negative,
            ``min_score`` is NaN, or ``rerank_depth`` is out of range.
    """

    k: int = 10
    mode: SearchMode = "auto"
    where: str | None = None
    fusion: Fusion = Fusion()  # noqa: RUF009 (frozen)
    rerank_depth: int = 100
    offset: int = 0
    min_score: float | None = None
    syntax: Syntax | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise QueryError(unknown_name(self.mode, self.mode, MODES, "search mode"))
        if self.syntax is not None and self.syntax not in SYNTAXES:
            raise QueryError(unknown_name(self.syntax, self.syntax, SYNTAXES, "query syntax"))
        if self.k < 1:
            raise QueryError(f"k is {self.k}; ask for at least 1 hit.")
        if self.offset < 0:
            raise QueryError(f"offset is {self.offset}; it must not be negative.")
        if self.min_score is not None and math.isnan(self.min_score):
            raise QueryError("min_score is NaN; pass a number.")
        if not 0 <= self.rerank_depth <= MAX_RERANK_DEPTH:
            raise QueryError(
                f"rerank_depth is {self.rerank_depth:,}; it must be from 0 to "
                f"{MAX_RERANK_DEPTH:,}, since the reranker reads the text of so many documents."
            )

    @property
    def depth(self) -> int:
        """Number of documents to find before reranking."""
        return max(self.offset + self.k, self.rerank_depth)

    def for_index(self, snapshot: Snapshot) -> SearchOptions:
        """Replace the mode ``auto`` by the mode for an index."""
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
