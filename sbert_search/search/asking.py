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


def refuse_blank(queries: Sequence[str]) -> None:
    """Refuse a query without any text, naming its place among several; raises `QueryError`."""
    for number, query in enumerate(queries, 1):
        if not query.strip():
            which = "The query" if len(queries) == 1 else f"Query {number}"
            raise QueryError(f"{which} is empty; ask something.")
