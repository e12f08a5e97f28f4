"""The nearest rows of one segment: by FAISS where that pays, else by an exact scan."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sbert_search.index import ann
from sbert_search.index.manifest import StoreSettings
from sbert_search.index.scan import TopK, Vectors, exact_scores, scan
from sbert_search.index.segments import Segment
from sbert_search.index.spec import MIN_ANN_ROWS


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
    found: ann.Ann | None,
    wanted: NDArray[np.bool_] | None,
    settings: StoreSettings,
) -> None:
    """Offer the best rows of a segment to `top`.

    Fewer than `MIN_ANN_ROWS` wanted rows are scanned, and so is all that FAISS cannot fill: a
    query gets k rows whenever there are k.

    Args:
        top: Best rows so far; also says what k is.
        queries: float32 (n_queries, dim), normalised for cosine.
        segment: Where to look.
        found: Its FAISS file, if it has one.
        wanted: Which positions take part, bool (n_rows,); None means all.
        settings: Of the index.
    """
    n_wanted = segment.n_rows if wanted is None else int(wanted.sum())
    index = found.index if found and n_wanted >= MIN_ANN_ROWS else None
    if index is None:
        offer_scanned(top, queries, segment, wanted, settings)
        return
    offer_found(top, queries, segment, index, wanted, settings)


def offer_found(
    top: TopK,
    queries: NDArray[np.float32],
    part: Rows,
    index: Any,
    wanted: NDArray[np.bool_] | None,
    settings: StoreSettings,
) -> None:
    """Offer the rows that a FAISS index finds, scored by their stored vectors.

    Arguments as for `offer_nearest`; ``index`` holds the vectors of ``part``. What it cannot fill
    to k is scanned.
    """
    n_wanted = part.n_rows if wanted is None else int(wanted.sum())
    at = ann.search(index, settings.spec, queries, top.k, wanted)
    short = (at >= 0).sum(axis=1) < min(top.k, n_wanted)
    query, column = np.nonzero((at >= 0) & ~short[:, None])
    at = at[query, column]
    scores = exact_scores(queries, part.vectors, query, at, settings.metric)
    top.offer(query, part.rows[at], scores)
    if short.any():
        rest = top.take(short)
        offer_scanned(rest, queries[short], part, wanted, settings)
        top.scores[short], top.rows[short] = rest.scores, rest.rows


def offer_scanned(
    top: TopK,
    queries: NDArray[np.float32],
    part: Rows,
    wanted: NDArray[np.bool_] | None,
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
        wanted=wanted,
    )
