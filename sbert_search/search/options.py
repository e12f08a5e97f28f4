"""What is asked of a search, refused where it cannot be before any model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sbert_search.config import unknown_name
from sbert_search.errors import QueryError
from sbert_search.search.fusion import Fusion

MODES = ("dense", "lexical", "hybrid")
MAX_RERANK_DEPTH = 10_000


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of every query of one call.

    Attributes:
        k: Documents wanted.
        mode: How they are found.
        where: Filter over the metadata.
        fusion: How dense and lexical rankings become one.
        rerank_depth: Documents that the reranker sees; 0 without one.

    Raises:
        QueryError: It cannot be.
    """

    k: int
    mode: str
    where: str | None
    fusion: Fusion
    rerank_depth: int

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise QueryError(unknown_name(self.mode, self.mode, MODES, "search mode"))
        if self.k < 1:
            raise QueryError(f"k is {self.k}; ask for at least 1 hit.")
        if not 0 <= self.rerank_depth <= MAX_RERANK_DEPTH:
            raise QueryError(
                f"rerank_depth is {self.rerank_depth:,}; it must be from 1 to "
                f"{MAX_RERANK_DEPTH:,}, since the reranker reads every one of so many texts."
            )

    @property
    def depth(self) -> int:
        """Documents wanted before reranking."""
        return max(self.k, self.rerank_depth)


def refuse_no_text(queries: Sequence[str]) -> None:
    """Refuse a query that is no text or has none, naming its place among several.

    Raises:
        QueryError: For such a query, and for one text where several are taken.
    """
    if isinstance(queries, str):
        raise QueryError("These queries are one text; pass a list of texts, or use `search`.")
    for number, query in enumerate(queries, 1):
        which = "The query" if len(queries) == 1 else f"Query {number}"
        if not isinstance(query, str):
            raise QueryError(f"{which} is of type {type(query).__name__}; it must be a text.")
        if not query.strip():
            raise QueryError(f"{which} is empty; ask something.")
