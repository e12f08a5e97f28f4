"""The nearest rows of one segment: by FAISS where that pays, else by an exact scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense import faiss_file, faiss_gpu
from sbert_search.index.dense.exact import TopK, exact_scores, scan
from sbert_search.index.dense.query_plan import Plan, Selection, plan
from sbert_search.index.norms import Vectors
from sbert_search.index.storage.manifest import StoreSettings
from sbert_search.index.storage.segments import Segment


class Rows(Protocol):
    """Vectors that are searched together, such as a segment."""

    @property
    def vectors(self) -> Vectors:
        """(n_rows, dim)."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row number of each vector, rising."""

    @property
    def n_rows(self) -> int:
        """How many."""

    @property
    def max_norm(self) -> float:
        """Largest Euclidean length of a vector."""


def offer_nearest(
    top: TopK,
    queries: NDArray[np.float32],
    segment: Segment,
    found: faiss_file.FaissFile | None,
    wanted: Selection | None,
    settings: StoreSettings,
) -> None:
    """Offer the best rows of a segment to `top`.

    Args:
        top: Best rows so far; also says what k is.
        queries: float32 (n_queries, dim), normalised for cosine.
        segment: Where to look.
        found: Its FAISS file, if it has one.
        wanted: Which positions take part; None means all.
        settings: Of the index.
    """
    if found is None or found.index is None:
        offer_exact(top, queries, segment, wanted, settings)
    else:
        offer_approximate(top, queries, segment, found.index, wanted, settings, found.on_gpu)


def offer_approximate(
    top: TopK,
    queries: NDArray[np.float32],
    part: Rows,
    index: Any,
    wanted: Selection | None,
    settings: StoreSettings,
    on_gpu: faiss_gpu.GpuIndex | None = None,
) -> None:
    """Offer the rows that a FAISS index finds, scored by their stored vectors.

    Arguments as for `offer_nearest`; ``index`` holds the vectors of ``part``, ``on_gpu`` is its
    copy on a device, which scores all vectors for what FAISS does not know there. Where few rows
    are wanted they are scanned instead, and so is in the end for any query what FAISS cannot fill:
    there are k rows whenever k are wanted.
    """
    search = _Search(part, index, wanted, settings, on_gpu)
    search.offer(top, queries, search.plan(top.k, len(queries)))


@dataclass(frozen=True, slots=True)
class _Search:
    """Where to look, and for what; as the arguments of `offer_approximate`."""

    part: Rows
    index: Any
    wanted: Selection | None
    settings: StoreSettings
    on_gpu: faiss_gpu.GpuIndex | None

    @property
    def n_selected(self) -> int:
        return self.part.n_rows if self.wanted is None else self.wanted.n_selected

    def plan(self, k: int, n_queries: int) -> Plan:
        return plan(
            self.settings.spec,
            self.part.n_rows,
            self.n_selected,
            n_live=self.part.n_rows if self.wanted is None else self.wanted.n_live,
            k=k,
            n_queries=n_queries,
            takes_bitmap=self.wanted is not None and faiss_file.takes_bitmap(self.index),
        )

    def offer(self, top: TopK, queries: NDArray[np.float32], how: Plan) -> None:
        """Follow a plan, and the one after it for the queries that it leaves short."""
        if how.fallback is None:
            offer_exact(top, queries, self.part, self.wanted, self.settings)
            return
        at = self.candidates(queries, how)
        query, at, short = _found(at, min(top.k, self.n_selected))
        scores = exact_scores(queries, self.part.vectors, query, at, self.settings.metric)
        top.offer(query, self.part.rows[at], scores)
        if short is not None:
            rest = top.take(short)
            self.offer(rest, queries[short], how.fallback)
            top.scores[short], top.rows[short] = rest.scores, rest.rows

    def candidates(self, queries: NDArray[np.float32], how: Plan) -> NDArray[np.int64]:
        """Find positions, (n_queries, any), -1 where there is none."""
        if self.on_gpu is None:
            return faiss_file.search(self.index, how, queries, self.wanted)
        if faiss_gpu.supports(how):
            return self.on_gpu.search(how, queries, self.wanted)
        euclidean = self.settings.metric == "euclidean"
        vectors, n_candidates = self.part.vectors, how.n_candidates
        return faiss_gpu.exact_candidates(
            queries, vectors, n_candidates, self.wanted, euclidean=euclidean
        )


def _found(
    at: NDArray[np.int64], needed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_] | None]:
    """Sort out positions (n_queries, n), -1 where there is none.

    Returns:
        Query and position of all that were found for a query that has as many as it needs, both
        (n_found,); and which queries have not, bool (n_queries,), or None when there is no such.
    """
    n_queries, n = at.shape
    if n >= needed and at.min(initial=0) >= 0:
        return np.arange(n_queries).repeat(n), at.ravel(), None
    found = at >= 0
    short = found.sum(axis=1) < needed
    found[short] = False
    return np.nonzero(found)[0], at[found], short if short.any() else None


def offer_exact(
    top: TopK,
    queries: NDArray[np.float32],
    part: Rows,
    wanted: Selection | None,
    settings: StoreSettings,
) -> None:
    """Offer the best rows by an exact scan; arguments as for `offer_nearest`."""
    scan(
        queries,
        part.vectors,
        top,
        part.rows,
        metric=settings.metric,
        max_norm=part.max_norm,
        selection=wanted,
    )
