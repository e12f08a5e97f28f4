"""The options of a search, checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack, get_args

from sbert_search.config import unknown_name
from sbert_search.errors import QueryError
from sbert_search.search.fusion import Fusion

SearchMode = Literal["dense", "lexical", "hybrid"]
MODES: tuple[SearchMode, ...] = get_args(SearchMode)
MAX_RERANK_DEPTH = 10_000


class SearchKeywords(TypedDict, total=False):
    """The fields of `SearchOptions` as keyword arguments; ``fusion=None`` means the defaults."""

    mode: SearchMode
    where: str | None
    fusion: Fusion | None
    rerank_depth: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """How documents are found and ordered.

    Attributes:
        k: Documents to return; all of them where the index holds fewer.
        mode: ``dense`` compares vectors; ``lexical`` compares words (BM25) and needs no model;
            ``hybrid`` does both and fuses the two rankings.
        where: A filter over the metadata, such as ``year >= 2019 AND kind = 'class'``.
        fusion: How ``hybrid`` fuses its rankings, and how much a reranker's score counts.
        rerank_depth: Documents that the reranker scores; it scores k documents if k is larger.
            Without a reranker this has no effect.

    Raises:
        QueryError: The mode is unknown, k is below 1, or ``rerank_depth`` is out of range.
    """

    k: int = 10
    mode: SearchMode = "dense"
    where: str | None = None
    fusion: Fusion = Fusion()  # noqa: RUF009 (frozen)
    rerank_depth: int = 100

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise QueryError(unknown_name(self.mode, self.mode, MODES, "search mode"))
        if self.k < 1:
            raise QueryError(f"k is {self.k}; ask for at least 1 hit.")
        if not 0 <= self.rerank_depth <= MAX_RERANK_DEPTH:
            raise QueryError(
                f"rerank_depth is {self.rerank_depth:,}; it must be from 1 to "
                f"{MAX_RERANK_DEPTH:,}, since the reranker reads the text of every document."
            )

    @property
    def depth(self) -> int:
        """Number of documents to find before reranking."""
        return max(self.k, self.rerank_depth)

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
